// Whether the kernel lets ranks read each other's memory (process_vm_readv): found by trying, the first time
// that a call or message could use it, so that joining a group asks for nothing. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "communicator/peers.h"
#include "transport/shm/group_memory.h"

namespace collective_ops {

class ReadProbe {
 public:
  // Tells the peers, in the group's memory, where to try.
  ReadProbe(const shm::GroupMemory& memory, int rank);

  // Whether this rank may read `peer`, which has entered the group.
  bool reads(int peer, Peers& peers);
  // Whether this rank may read all others, which have entered the group; tells them the answer.
  bool reads_all(Peers& peers);
  // What reads_all() gave on `peer`; shm::kReadsUnknown where that rank has not asked yet.
  uint32_t verdict_of(int peer) const;

 private:
  shm::GroupMemory memory_;
  int rank_;
  std::vector<std::atomic<uint32_t>> found_;  // by rank
};

}  // namespace collective_ops
