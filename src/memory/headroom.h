// How much memory this process may still take, asked before it is taken: a page that does not fit in
// a memory cgroup ends the process with SIGKILL, and a file past RLIMIT_FSIZE with SIGXFSZ. A refusal
// here is an error that names the limit, what was found, what was needed, and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <collective_ops/status.h>

namespace collective_ops {

// One limit as found. `used` leaves out page cache, which the kernel gives back by itself.
struct MemoryLimit {
  std::string name;    // "memory cgroup /a/b", "MemAvailable", "RLIMIT_AS"
  std::string source;  // the file or call it was read from
  uint64_t limit = 0;  // bytes
  uint64_t used = 0;   // bytes
  std::string advice;  // what a user can do about it

  uint64_t available() const { return limit > used ? limit - used : 0; }
};

// Every memory limit that binds this process: its memory cgroups (v1 and v2) up the tree, the
// machine's MemAvailable, and RLIMIT_AS. `root` replaces "/" before proc/ and sys/, for tests.
std::vector<MemoryLimit> memory_limits(const std::string& root = "");

// Ok if `bytes` of new shared memory fit in all limits, and in RLIMIT_FSIZE as one file; else
// kOutOfMemory. `what` completes "no room for ...". About 30 us.
Status check_headroom(size_t bytes, std::string_view what, const std::string& root = "");

}  // namespace collective_ops
