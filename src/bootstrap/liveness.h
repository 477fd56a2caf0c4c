// Whether the other ranks still live, asked while waiting for them.
#pragma once

#include <poll.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/process.h"

namespace collective_ops {

struct DeadPeer {
  int rank = 0;
  pid_t pid = 0;
  std::string how;  // "killed by signal 9 (Killed)", "exited with status 1", "gone"
};

class PeerWatch {
 public:
  // Watches all but `own_rank`, or of them `ranks` alone. `peers` (their descriptors) must outlive this.
  PeerWatch(const std::vector<PeerProcess>& peers, int own_rank, std::span<const int> ranks = {});

  // The lowest rank that is dead; a zombie is dead. One system call, about 1 us; does not block. One thread
  // at a time.
  std::optional<DeadPeer> check();

  // All dead ranks, ascending.
  std::vector<DeadPeer> check_all();

 private:
  struct Watched {
    int rank;
    pid_t pid;
    int64_t start_time;
  };
  std::vector<DeadPeer> look(bool first_only);
  DeadPeer describe(size_t index) const;

  std::vector<Watched> watched_;
  std::vector<pollfd> poll_;  // same order
  bool without_pidfd_ = false;
};

}  // namespace collective_ops
