// Arguments of calls as Python gives them. What cannot be used is InvalidArgumentError, which names the
// argument and what it may be.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

#include <pybind11/pybind11.h>

#include <collective_ops/types.h>

namespace collective_ops::python {

// Seconds as a number or a timedelta; None: the default.
std::optional<std::chrono::milliseconds> milliseconds_from(pybind11::handle seconds,
                                                           std::string_view name = "timeout");

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;  // of kPreMulSum
};

// A name in upper or lower case, a constant of torch.distributed.ReduceOp, or a pre-multiplied sum: an object
// with `op` (its name) and `factor`, as collective_ops.premul_sum and PyTorch make it.
Reduction reduction_from(pybind11::handle op);

// A whole number; whether it is a rank is the core's question.
int root_from(pybind11::handle root);

}  // namespace collective_ops::python
