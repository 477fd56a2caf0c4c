/* A tuner of one's own: a shared library that exports
 *
 *   int collective_ops_tune_v1(const collective_ops_tuner_call *call,
 *                              collective_ops_tuner_candidate *candidates, int count);
 *
 * COLLECTIVE_OPS_TUNER_PLUGIN names its file, on all ranks the same; each communicator then asks it once for
 * every kind of call that it has not made before, for each kind of memory. It may change `cost_ns` of the
 * candidates: the one with the lowest cost is taken, of equal ones the first. At first that is the one that the
 * tuning table names. Return 0; with any other value the table's choice stands.
 *
 * All ranks have to come to the same choice, so the answer may depend on the arguments alone. It is called by
 * the thread that makes the call, and by several at once where a process has several communicators.
 * COLLECTIVE_OPS_ALGORITHM, COLLECTIVE_OPS_PATH and where they apply HCCL_ALGO and NCCL_ALGO come first: then it
 * is not asked. examples/tuner_plugin.c is one. */
#ifndef COLLECTIVE_OPS_TUNER_PLUGIN_H_
#define COLLECTIVE_OPS_TUNER_PLUGIN_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  const char *collective; /* "all_reduce", as in docs/algorithms.md */
  size_t bytes;           /* of the whole vector: of all ranks' parts where the collective has parts */
  size_t element_size;    /* bytes */
  int ranks;
  int shared; /* 1: of memory that the ranks share, 0: of private memory */
} collective_ops_tuner_call;

typedef struct {
  const char *algorithm; /* "one_shot", "two_shot", "direct" ... */
  const char *path;      /* "staged", "direct" or "read", as in traces; small staged calls may be "inline" there */
  double cost_ns;        /* by the cost model and its built-in numbers */
  int ordered;           /* 0: sums are not in the order of ranks */
} collective_ops_tuner_candidate;

typedef int (*collective_ops_tune_v1_function)(const collective_ops_tuner_call *call,
                                               collective_ops_tuner_candidate *candidates, int count);

#ifdef __cplusplus
}
#endif

#endif
