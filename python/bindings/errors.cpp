#include "errors.h"

#include <string>

#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace collective_ops::python {

void raise(const Status& status) {
  // A signal's handler (KeyboardInterrupt) that ended a wait comes before the status that it led to.
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  const py::object type =
      py::module_::import("collective_ops.errors").attr("error_type")(std::string(name_of(status.code())));
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw py::error_already_set();
}

}  // namespace collective_ops::python
