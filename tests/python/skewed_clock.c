/* Another host's clock for one process, preloaded: the real one is ahead by SKEW_NS, and the real and the
   monotonic one run faster by SKEW_PPM from the start of the process on. SKEW_FILE gets that start, real. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*the_real)(clockid_t, struct timespec*);
static long long ahead_ns, start_ns;
static double drift;

static long long ns_of(clockid_t id) {
  struct timespec now;
  the_real(id, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

__attribute__((constructor)) static void begin(void) {
  the_real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  start_ns = ns_of(CLOCK_MONOTONIC);
  ahead_ns = atoll(getenv("SKEW_NS"));
  drift = atof(getenv("SKEW_PPM")) * 1e-6;
  FILE* file = fopen(getenv("SKEW_FILE"), "w");
  fprintf(file, "%lld", ns_of(CLOCK_REALTIME));
  fclose(file);
}

int clock_gettime(clockid_t id, struct timespec* out) {
  if (the_real == NULL) begin();
  int result = the_real(id, out);
  if (result != 0 || (id != CLOCK_REALTIME && id != CLOCK_MONOTONIC)) return result;
  long long since = ns_of(CLOCK_MONOTONIC) - start_ns;
  long long more = (long long)(drift * since) + (id == CLOCK_REALTIME ? ahead_ns : 0);
  long long now = out->tv_sec * 1000000000LL + out->tv_nsec + more;
  out->tv_sec = now / 1000000000LL;
  out->tv_nsec = now % 1000000000LL;
  return 0;
}

int gettimeofday(struct timeval* out, void* zone) {
  (void)zone;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}
