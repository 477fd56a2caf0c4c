// How ranks on several hosts meet, as Python gives it.
#pragma once

#include <memory>

#include <pybind11/pybind11.h>

#include <collective_ops/hosts.h>

namespace collective_ops::python {

// Of an object with set(key, value), and wait([key], timedelta) and get(key), as PyTorch's stores have them.
// nullptr for None. The object must outlive it.
std::shared_ptr<KeyValueStore> store_from(pybind11::handle object);

}  // namespace collective_ops::python
