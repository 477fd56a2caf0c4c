// What each file adds to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace collective_ops::python {

void bind_communicator(pybind11::module_& module);
void bind_shared_array(pybind11::module_& module);
void bind_trace(pybind11::module_& module);
void bind_inspection(pybind11::module_& module);
void bind_hosts(pybind11::module_& module);

}  // namespace collective_ops::python
