// The texts of failures inside a call: who, what, and what to do next.
#pragma once

#include <cstdint>
#include <string>

#include <collective_ops/status.h>

#include "communicator/peers.h"
#include "transport/shm/group_memory.h"

namespace collective_ops {

// "all_reduce float32 sum, 1000 elements"; "broadcast float32 from root 2, 16 elements".
std::string describe(const shm::Signature& signature);

// The call that `rank` last announced, and how far it got.
std::string describe_last_call(const shm::GroupMemory& memory, int rank);

// kMismatch: what each rank called as call `sequence`, and which fields differ. Waits a few
// milliseconds for ranks that have not called yet, so that the text can name them too.
Status mismatch(const shm::GroupMemory& memory, int rank, const shm::Signature& own);

// kMismatch where a call before `sequence` differed, which `rank` or `peer` had left without waiting.
Status earlier_mismatch(const shm::GroupMemory& memory, int rank, int peer, uint32_t sequence);

// kTimeout of `rank` in a call, waiting for `peer`.
Status timed_out(const shm::GroupMemory& memory, const Peers& peers, int rank, int peer,
                 const shm::Signature& own, int64_t waited_ns);

// kPeerLost: `rank` was in a call, and `what` happened.
Status peer_lost(int rank, const shm::Signature& own, const std::string& what);

}  // namespace collective_ops
