#include "tuner/plugin.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace collective_ops {

Result<std::shared_ptr<const Plugin>> Plugin::load(const std::string& file) {
  const auto refuse = [&](const char* what) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("COLLECTIVE_OPS_TUNER_PLUGIN={}: {}", file,
                                                           what != nullptr ? what : "not loaded"));
  };
  // Never closed: calls may be running until the process ends.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return refuse(dlerror());
  void* const symbol = dlsym(library, "collective_ops_tune_v1");
  if (symbol == nullptr) return refuse("it has no function collective_ops_tune_v1 (tuner_plugin.h)");
  return std::make_shared<const Plugin>(reinterpret_cast<collective_ops_tune_v1_function>(symbol));
}

}  // namespace collective_ops
