// The texts of failures inside a call: who, what, and what to do next.
#pragma once

#include <cstdint>
#include <string>

#include <collective_ops/status.h>

#include "communicator/members.h"
#include "communicator/peers.h"
#include "transport/shm/group_memory.h"

namespace collective_ops {

// "all_reduce float32 sum, 1000 elements"; "broadcast float32 from root 2, 16 elements".
std::string describe(const shm::Signature& signature);
// The same; in a group the root's rank of the world stands beside that in the group.
std::string describe(const shm::Signature& signature, const Members& members);

// The call that `rank` last announced, and how far it got: "is in call #3 (barrier)".
std::string describe_last_call(const shm::GroupMemory& memory, const Members& members, int rank);

// kMismatch: what each rank called as call `sequence`, and which fields differ. Waits a few
// milliseconds for ranks that have not called yet, so that the text can name them too.
Status mismatch(const shm::GroupMemory& memory, const Members& members, int rank, const shm::Signature& own);

// kMismatch where a call before `sequence` differed, which `rank` or `peer` had left without waiting.
Status earlier_mismatch(const shm::GroupMemory& memory, const Members& members, int rank, int peer,
                        uint32_t sequence);

// The same of two ranks of the world on different hosts, by what the one has sent to the other.
Status mismatch_between(const Members& members, int us, const shm::Signature& own, int them,
                        const shm::Signature& theirs);
// kMismatch where one of these two made another call before call `number`.
Status differed_earlier(const Members& members, int us, int them, uint32_t number);

// kTimeout of `rank` in a call, waiting for `peer`, which does `elsewhere` in other groups meanwhile.
struct LateCall {
  int rank;
  int peer;
  shm::Signature own;
  int64_t waited_ns;
  std::string elsewhere;  // as Host::elsewhere() puts it
};
Status timed_out(const shm::GroupMemory& memory, const Members& members, const Peers& peers,
                 const LateCall& late);

// kPeerLost: `rank` was in a call, and `what` happened.
Status peer_lost(const Members& members, int rank, const shm::Signature& own, const std::string& what);

// "call #3 (barrier)"; of a group "call #3 (barrier) of group \"tp\" of ranks 4,5".
std::string place_of(const shm::Signature& own, const Members& members);

}  // namespace collective_ops
