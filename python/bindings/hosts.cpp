#include "hosts.h"

#include <chrono>
#include <string>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "base/environment.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/launch.h"
#include "bootstrap/secret.h"
#include "errors.h"
#include "module.h"

namespace py = pybind11;

namespace collective_ops::python {
namespace {

// Called by a thread that has let go of the GIL.
class PythonStore final : public KeyValueStore {
 public:
  explicit PythonStore(py::handle object) : object_(object) {}

  Status set(const std::string& key, const std::string& value) override {
    const py::gil_scoped_acquire acquire;
    try {
      object_.attr("set")(key, value);
      return {};
    } catch (py::error_already_set& error) {
      return {ErrorCode::kRendezvous, "writing to the store: " + std::string(error.what())};
    }
  }

  // What the store raises until the key is there is its own; either way it is not there yet.
  Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) override {
    const py::gil_scoped_acquire acquire;
    try {
      object_.attr("wait")(py::make_tuple(key).cast<py::list>(), timeout);
      const py::object value = object_.attr("get")(key);
      return value.cast<std::string>();
    } catch (py::error_already_set& error) {
      if (error.matches(PyExc_KeyboardInterrupt)) return Status(ErrorCode::kInterrupted, "interrupted");
      return Status(ErrorCode::kTimeout,
                    "the store has no word of rank 0 yet (" + std::string(error.what()) + ")");
    } catch (py::cast_error&) {
      return Status(ErrorCode::kInvalidArgument, "the store's get() returned neither bytes nor text");
    }
  }

 private:
  py::handle object_;
};

py::object launched() {
  auto found = find_launched(environment_text);
  check(found.status());
  if (!*found) return py::none();
  return py::make_tuple((*found)->launcher, (*found)->rank, (*found)->world_size, (*found)->local_size);
}

py::object root_place() {
  auto found = find_root_place(environment_text);
  check(found.status());
  if (!*found) return py::none();
  return py::make_tuple((*found)->host, (*found)->port, (*found)->origin);
}

py::tuple secret() {
  auto found = find_secret();
  check(found.status());
  const char* const kinds[] = {"shared", "this_host", "insecure"};
  return py::make_tuple(kinds[static_cast<int>(found->kind)], found->origin);
}

py::list addresses() {
  auto own = own_addresses();
  check(own.status());
  check(own_ports().status());
  py::list result;
  for (const SocketAddress& address : own->addresses) result.append(address.host());
  return result;
}

std::string root_info() {
  auto text = create_root_info();
  check(text.status());
  return *text;
}

}  // namespace

std::shared_ptr<KeyValueStore> store_from(py::handle object) {
  return object.is_none() ? nullptr : std::make_shared<PythonStore>(object);
}

void bind_hosts(py::module_& module) {
  module.def("create_root_info", &root_info, "See create_root_info() of the package.");
  module.def("launched", &launched, "(launcher, rank, world size, ranks of this host or 0), or None.");
  module.def("root_place", &root_place, "(host, port, where that is said) of rank 0, or None.");
  module.def("secret", &secret, "(kind, where it is from); raises what find_secret() finds wrong with it.");
  module.def("new_secret", &new_secret, "64 hexadecimal digits.");
  module.def("own_addresses", &addresses, "Addresses that other hosts are told, best first.");
}

}  // namespace collective_ops::python
