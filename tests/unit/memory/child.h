// Runs a function in a forked child, for what changes a whole process (limits, death).
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

namespace collective_ops {

// The wait status; 0 where `body` returned true.
template <typename Body>
int in_child(Body body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body() ? 0 : 1);
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status;
}

// Lets this process map only `bytes` more than it does now.
inline void limit_address_space(size_t bytes) {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit both = {limit, limit};
  ::setrlimit(RLIMIT_AS, &both);
}

}  // namespace collective_ops
