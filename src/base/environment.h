// The one table of environment variables. A value is read when it is asked for (a process may set
// it before init_hccl); a value that cannot be used is an error that names variable, value and range.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <collective_ops/status.h>

namespace collective_ops {

struct EnvironmentVariable {
  std::string_view name;
  std::string_view default_value;
  std::string_view meaning;
};

// Every variable this library reads, in the order of docs/tuning.md.
std::span<const EnvironmentVariable> environment_variables();

// The text of a variable that stands in the table, or its default. "" where neither is set.
std::string environment_text(std::string_view name);

// A whole number from `low` to `high`; of a variable that has a default.
Result<int64_t> environment_number(std::string_view name, int64_t low, int64_t high);

// Whole seconds between `low` and `high`; 0 is allowed where low is 0.
Result<std::chrono::seconds> environment_seconds(std::string_view name, int64_t low, int64_t high);

// "", "0", "false", "off" are false; "1", "true", "on" are true; anything else is an error.
Result<bool> environment_flag(std::string_view name);

}  // namespace collective_ops
