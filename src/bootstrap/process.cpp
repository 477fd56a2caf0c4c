#include "bootstrap/process.h"

#include <fcntl.h>

#include <sstream>
#include <vector>

#include <fmt/format.h>

namespace collective_ops {
namespace {

// Numbers of the fields in proc(5), which counts from 1; the text behind the name begins with field 3.
constexpr size_t kState = 3;
constexpr size_t kParent = 4;
constexpr size_t kFlags = 9;
constexpr size_t kStartTime = 22;
constexpr size_t kExitCode = 52;
constexpr uint64_t kExiting = 0x4;  // PF_EXITING

}  // namespace

std::optional<ProcessState> read_process(pid_t pid) {
  const Descriptor file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  char text[2048];
  const ssize_t count = ::read(file.get(), text, sizeof(text));
  if (count <= 0) return std::nullopt;
  const std::string_view all(text, static_cast<size_t>(count));
  const size_t name_end = all.rfind(')');  // the name itself may hold spaces and brackets
  if (name_end == std::string_view::npos || name_end + 2 >= all.size()) return std::nullopt;

  std::istringstream stream{std::string(all.substr(name_end + 2))};
  ProcessState process;
  stream >> process.state;
  std::vector<uint64_t> fields(kState + 1, 0);
  for (uint64_t value = 0; stream >> value;) fields.push_back(value);  // some go up to 2^64 - 1; -1 wraps
  if (fields.size() <= kStartTime) return std::nullopt;
  process.parent = static_cast<pid_t>(fields[kParent]);
  process.start_time = static_cast<int64_t>(fields[kStartTime]);
  process.exiting = (fields[kFlags] & kExiting) != 0;
  if (fields.size() > kExitCode) process.exit_code = static_cast<int>(fields[kExitCode]);
  return process;
}

}  // namespace collective_ops
