/* A tuner that breaks its contract: its answer depends on which thread asks, so on the rank. */
#include <stdatomic.h>
#include <string.h>

#include <collective_ops/tuner_plugin.h>

int collective_ops_tune_v1(const collective_ops_tuner_call *call, collective_ops_tuner_candidate *candidates,
                           int count) {
  static atomic_int threads;
  static _Thread_local int mine = -1;
  if (mine < 0) mine = atomic_fetch_add(&threads, 1);
  const char *wanted = mine % 2 == 0 ? "one_shot" : "two_shot";
  for (int i = 0; i < count; ++i) {
    if (strcmp(candidates[i].algorithm, wanted) == 0) candidates[i].cost_ns = 0;
  }
  (void)call;
  return 0;
}
