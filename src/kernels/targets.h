// The instruction sets that the kernels are compiled for, and how a test picks one.
// Include before any Highway header: all files must see the same list.
#pragma once

#include <string_view>
#include <vector>

// Compiled: AVX3 (AVX-512 F, BW, DQ, VL), AVX2 and the baseline (SSE4 on x86, NEON on Arm). Others cost
// compile time and code without making an element-wise loop faster.
#define HWY_DISABLED_TARGETS \
  (HWY_AVX3_DL | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

namespace collective_ops {

// Names of the compiled instruction sets that this processor has, the best first.
std::vector<std::string_view> supported_kernel_targets();

// Makes later calls of reduce_kernel() answer with kernels of that instruction set. False, and nothing
// changes, if it is not among the supported ones; an empty name returns to the best. For tests and
// benchmarks: kernels taken earlier keep their instruction set.
bool force_kernel_target(std::string_view name);

}  // namespace collective_ops
