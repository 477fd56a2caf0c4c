// The listening socket that stands for a rank while its process lives.
#pragma once

#include <cstdint>
#include <string>

#include <collective_ops/status.h>

#include "memory/descriptor.h"

namespace collective_ops {

// Closes itself, and its copy in every child of fork: a child must not keep a rank's name alive, nor
// take what is sent to it.
class Listener {
 public:
  Listener() = default;
  explicit Listener(Descriptor fd);
  Listener(Listener&& other) noexcept = default;
  Listener& operator=(Listener&& other) noexcept;
  ~Listener();

  int fd() const { return fd_.get(); }

 private:
  void forget();

  Descriptor fd_;
};

// Binds socket_name(job, rank) and listens. A name held by a process that is just ending is waited for
// until `deadline_ns`; one held by a living process is kDuplicateRank after half a second.
Result<Listener> claim_rank(const std::string& job, int rank, int64_t deadline_ns);

}  // namespace collective_ops
