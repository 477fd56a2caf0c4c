// One turn of a polling loop.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace collective_ops::shm {

inline void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace collective_ops::shm
