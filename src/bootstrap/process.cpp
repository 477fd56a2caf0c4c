#include "bootstrap/process.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>
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
  const ssize_t count = ::read(file.get(), text, sizeof(text) - 1);
  if (count <= 0) return std::nullopt;
  text[count] = '\0';
  const char* name_end = std::strrchr(text, ')');  // the name itself may hold spaces and brackets
  if (name_end == nullptr || name_end[1] != ' ' || name_end[2] == '\0') return std::nullopt;

  ProcessState process;
  process.state = name_end[2];
  std::vector<uint64_t> fields(kState + 1, 0);
  const char* at = name_end + 3;
  for (;;) {
    char* end = nullptr;
    const uint64_t value = std::strtoull(at, &end, 10);  // some go up to 2^64 - 1; -1 wraps
    if (end == at) break;
    fields.push_back(value);
    at = end;
  }
  if (fields.size() <= kStartTime) return std::nullopt;
  process.parent = static_cast<pid_t>(fields[kParent]);
  process.start_time = static_cast<int64_t>(fields[kStartTime]);
  process.exiting = (fields[kFlags] & kExiting) != 0;
  if (fields.size() > kExitCode) process.exit_code = static_cast<int>(fields[kExitCode]);
  return process;
}

Descriptor open_process(pid_t pid, int64_t start_time) {
  Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process.valid()) return process;
  // Read after the descriptor was there: it is of this process, and of no later one with its number.
  const auto state = read_process(pid);
  return state && state->start_time == start_time ? std::move(process) : Descriptor();
}

}  // namespace collective_ops
