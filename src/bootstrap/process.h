// What identifies a process: its id together with its start time, since ids are used again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "memory/descriptor.h"

namespace collective_ops {

// A member of the group, as every other member sees it.
struct PeerProcess {
  int rank = 0;
  pid_t pid = 0;
  int64_t start_time = 0;  // clock ticks after boot
  Descriptor pidfd;        // of open_process(); where it is not valid, id and start time serve
  std::string host;
};

// From /proc/<pid>/stat.
struct ProcessState {
  char state = '?';  // 'Z' and 'X' are dead
  pid_t parent = 0;
  int64_t start_time = 0;  // clock ticks after boot
  int exit_code = 0;       // as wait() gives it; of a zombie only
  bool exiting = false;    // dying: still has a state, never runs again

  bool dead() const { return state == 'Z' || state == 'X'; }
};

std::optional<ProcessState> read_process(pid_t pid);  // nothing where there is no such process

// A descriptor that tells when it ends. Not valid where it has ended, or the kernel has none to give.
Descriptor open_process(pid_t pid, int64_t start_time);

}  // namespace collective_ops
