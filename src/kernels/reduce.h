// Element-wise kernels over many sources and many destinations at once.
//
// reduce(): destination[d][i] = op(source[0][i], source[1][i], ...) for every d. Sources are combined
// in the order given, float16 and bfloat16 in float32, integers in their own width (wrapping;
// kAvg in 64 bits, truncated towards zero), and rounded once, to nearest even. Min and max carry NaN on.
// A destination may be the same memory as a source (in place), but not overlap it otherwise.
// The instruction set is chosen once at run time.
#pragma once

#include <cstddef>
#include <span>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

namespace collective_ops {

struct ReduceArguments {
  std::span<void* const> destinations;
  std::span<const void* const> sources;
  size_t count = 0;                 // elements
  int divisor = 1;                  // of kAvg, at least 1: the number of ranks, also with fewer sources
  const double* factors = nullptr;  // of kPreMulSum: one per source
};

using ReduceKernel = void (*)(const ReduceArguments&);

// The kernel of a type and an operation; nullptr where is_reducible() is false.
ReduceKernel reduce_kernel(DataType type, ReduceOp op);

// The instruction set in use ("AVX3_SPR", "AVX2", ...).
const char* kernel_target();

}  // namespace collective_ops
