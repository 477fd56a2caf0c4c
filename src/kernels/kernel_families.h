// One function per file of kernels; each answers nullptr for types and operations of another file.
#pragma once

#include "kernels/reduce.h"

namespace collective_ops {

ReduceKernel float_kernel(DataType type, ReduceOp op);    // float32, float64, complex as pairs of them
ReduceKernel half_kernel(DataType type, ReduceOp op);     // float16, bfloat16
ReduceKernel integer_kernel(DataType type, ReduceOp op);  // integers and bool, one vector instruction each
ReduceKernel scalar_kernel(DataType type, ReduceOp op);   // products and averages of integers

}  // namespace collective_ops
