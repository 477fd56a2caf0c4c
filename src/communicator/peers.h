// The other ranks as a group sees them: whether they live, and where their buffers lie here. Ranks are those
// of the group; texts name them by their rank in the world. Two kinds: processes that joined through
// bootstrap/, and threads of this process; Host makes them. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include <collective_ops/status.h>

#include "transport/shm/group_memory.h"

namespace collective_ops {

class Peers {
 public:
  virtual ~Peers() = default;

  // "rank 3 (pid 4711) was lost: killed by signal 9" where a rank has died that is not excused (it left in
  // order); empty where none has. Called while waiting, every few milliseconds.
  virtual std::string find_lost(const std::function<bool(int rank)>& excused) = 0;
  // "rank 3 (pid 4711)".
  virtual std::string describe(int rank) const = 0;

  // Where [pointer, pointer + bytes) of this rank lies for its peers; segment 0 if they cannot reach it.
  // Makes sure that they can map it.
  virtual Result<shm::MemoryRef> share(const void* pointer, size_t bytes) = 0;
  // The address here of `bytes` that rank shared. `interrupted` ends the wait for a first mapping.
  virtual Result<std::byte*> reach(int rank, const shm::MemoryRef& reference, size_t bytes,
                                   int64_t deadline_ns, const std::function<Status()>& interrupted) = 0;

  // Copies from an address in the peer's process; only where can_read() was true.
  virtual Status read(int rank, const std::byte* from, std::byte* to, size_t bytes) = 0;
  // Tries whether the kernel lets this process read `bytes` at an address of the peer.
  virtual bool can_read(int rank, const std::byte* from, std::byte* to, size_t bytes) = 0;
};

}  // namespace collective_ops
