// The user's own tuner, loaded from a file (include/collective_ops/tuner_plugin.h).
#pragma once

#include <memory>
#include <string>

#include <collective_ops/status.h>
#include <collective_ops/tuner_plugin.h>

namespace collective_ops {

class Plugin {
 public:
  // Stays loaded as long as the process. kInvalidArgument with what the loader says.
  static Result<std::shared_ptr<const Plugin>> load(const std::string& file);
  // For tests.
  explicit Plugin(collective_ops_tune_v1_function function) : function_(function) {}

  bool tune(const collective_ops_tuner_call& call, collective_ops_tuner_candidate* candidates,
            int count) const {
    return function_(&call, candidates, count) == 0;
  }

 private:
  collective_ops_tune_v1_function function_;
};

}  // namespace collective_ops
