// What the two sides of a join have in common.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bootstrap/rendezvous.h"
#include "bootstrap/wire.h"
#include "memory/private_descriptor.h"

namespace collective_ops::rendezvous {

struct Context {
  int rank = 0;
  int world_size = 1;
  std::string job;
  size_t control_bytes = 0;
  int64_t begin_ns = 0;
  int64_t deadline_ns = 0;
  const JoinSettings* settings = nullptr;

  wire::Hello hello() const;
  double waited_seconds() const;
  Status interrupted() const { return settings->interrupted ? settings->interrupted() : Status(); }
};

// What a join yields besides the listener.
struct Gathered {
  std::vector<PeerProcess> peers;
  SharedSegment control;
  uint64_t secret[2] = {0, 0};
};

Result<Gathered> join_as_host(const Context& context, const PrivateDescriptor& listener);  // rank 0
Result<Gathered> join_as_guest(const Context& context);                           // all others

std::vector<PeerProcess> peers_of(const std::vector<wire::RosterEntry>& roster);

// The texts that all ranks return.
Status missing_ranks(const Context& context, int waiting_rank, double waited_seconds,
                     const std::set<int>& missing, const std::vector<wire::RosterEntry>& duplicates);
Status differing_world_sizes(const std::map<int, wire::Hello>& hellos);
Status differing_builds(const std::map<int, wire::Hello>& hellos);

// "rank 3", "ranks 1, 2 and 5", "ranks 1 to 7".
std::string list_ranks(const std::set<int>& ranks);

}  // namespace collective_ops::rendezvous
