#include "arguments.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "errors.h"

namespace py = pybind11;
using std::chrono::milliseconds;

namespace collective_ops::python {
namespace {

[[noreturn]] void invalid(std::string text) { raise({ErrorCode::kInvalidArgument, std::move(text)}); }

std::string shown(py::handle object) {
  constexpr size_t kLongest = 60;
  std::string text = PyUnicode_Check(object.ptr()) ? "\"" + object.cast<std::string>() + "\""
                                                   : std::string(py::repr(object));
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

// "RedOpType.SUM" is what torch.distributed.ReduceOp.SUM calls itself.
std::string plain_name(std::string name) {
  name.erase(0, name.rfind('.') + 1);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

}  // namespace

std::optional<milliseconds> milliseconds_from(py::handle seconds, std::string_view name) {
  if (seconds.is_none()) return std::nullopt;
  const py::object number = py::hasattr(seconds, "total_seconds")
                                ? py::object(seconds.attr("total_seconds")())
                                : py::reinterpret_borrow<py::object>(seconds);
  const double value = PyFloat_AsDouble(number.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    invalid(fmt::format("{}={} is no number of seconds; give a number or a timedelta", name, shown(seconds)));
  }
  if (!(value >= 0) || value > 1e9)
    invalid(fmt::format("{}={}: seconds from 0 (wait for ever) to 1e9", name, value));
  return milliseconds(static_cast<int64_t>(std::ceil(value * 1000)));
}

namespace {

std::optional<ReduceOp> op_from(py::handle op) {
  std::optional<ReduceOp> found;
  if (PyUnicode_Check(op.ptr())) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(op.ptr(), &size);
    if (text == nullptr) throw py::error_already_set();
    found = reduce_op_from({text, static_cast<size_t>(size)});
  }
  if (!found && !op.is_none()) found = reduce_op_from(plain_name(py::str(op)));
  return found;
}

// Older versions of PyTorch show it in the state that is pickled alone.
double factor_of(py::handle op) {
  try {
    const py::object factor = py::hasattr(op, "factor")
                                  ? py::object(op.attr("factor"))
                                  : py::object(op.attr("__getstate__")().attr("__getitem__")(1));
    return py::float_(factor).cast<double>();  // also a tensor of one element
  } catch (py::error_already_set&) {
    invalid(fmt::format("op={}: its factor is no number; give collective_ops.premul_sum(factor)", shown(op)));
  }
}

}  // namespace

Reduction reduction_from(py::handle op) {
  const bool named = PyUnicode_Check(op.ptr()) == 0 && py::hasattr(op, "op");
  const std::optional<ReduceOp> found =
      op_from(named ? py::object(op.attr("op")) : py::reinterpret_borrow<py::object>(op));
  if (found && *found != ReduceOp::kPreMulSum) return {*found};
  if (found && named) return {*found, factor_of(op)};
  if (found) invalid(fmt::format("op={} needs a factor; give collective_ops.premul_sum(factor)", shown(op)));
  std::string known;
  for (int i = 0; i < static_cast<int>(ReduceOp::kPreMulSum); ++i)
    known += fmt::format("{}, ", name_of(static_cast<ReduceOp>(i)));
  invalid(fmt::format("op={} is not known; there are {}premul_sum(factor)", shown(op), known));
}

int root_from(py::handle root) {
  const py::object number = py::reinterpret_steal<py::object>(PyNumber_Index(root.ptr()));
  const long value = number ? PyLong_AsLong(number.ptr()) : -1;
  if (PyErr_Occurred() != nullptr || value < std::numeric_limits<int>::min() ||
      value > std::numeric_limits<int>::max()) {
    PyErr_Clear();
    invalid(fmt::format("root={}: a whole number, of a rank of this group", shown(root)));
  }
  return static_cast<int>(value);
}

}  // namespace collective_ops::python
