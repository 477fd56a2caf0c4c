// How the ranks of several hosts become a cluster. Rank 0 is where all register. Once all have, who and where
// they are goes down a tree over the ranks, in which each connects to its children, so that nobody sends it
// more than a few times; up the tree comes that all below are connected, and down again that all may go. A
// rank that dies or gives up meanwhile is noticed by rank 0, to which each has a connection until then, and
// rank 0 tells all.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/cluster.h"
#include "bootstrap/dial.h"
#include "bootstrap/door.h"
#include "bootstrap/frames.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/meeting_place.h"
#include "bootstrap/secret.h"

namespace collective_ops::forming {

inline constexpr int kFanOut = 4;  // of the tree: depth 5 for 1,024 ranks
inline int parent_of(int rank) { return (rank - 1) / kFanOut; }
inline std::vector<int> children_of(int rank, int size) {
  std::vector<int> children;
  for (int child = rank * kFanOut + 1; child <= rank * kFanOut + kFanOut && child < size; ++child) {
    children.push_back(child);
  }
  return children;
}

struct Context {
  const MeetingPlace& meeting;
  const ClusterOptions& options;
  const JobSecret& secret;
  const Digest& key;
  const OwnAddresses& own;
  Door& door;
  Waiting waiting;  // serves the door
  int64_t begin_ns = 0;

  double waited_seconds() const;
  int rank() const { return options.rank; }
  int world_size() const { return options.world_size; }
};

// What a rank tells of itself.
struct Record {
  std::string version;
  int world_size = 0;
  bool loopback_route = false;  // it reached rank 0 by a loopback address
  ClusterMember member;
};

// This process's, its addresses ordered by the route that led to rank 0 (empty: none yet).
Record own_record(const Context& context, const SocketAddress& route);

std::string pack(const Record& record);
std::string pack_table(const std::string& run, const std::vector<Record>& records);
bool unpack_record(const std::string& bytes, Record& record);
bool unpack_table(const std::string& bytes, std::string& run, std::vector<ClusterMember>& members);

std::string pack(const Status& status);
Status unpack_status(const std::string& bytes);

// Link-local addresses mean an interface of their own host; here it is the one that `scope` names, or they
// are of no use and left out.
void scope_addresses(std::vector<ClusterMember>& members, uint32_t scope);

using Children = std::vector<std::pair<int, FrameLink>>;
struct Formed {
  std::vector<ClusterMember> members;
  std::string run;   // names this start of the job
  FrameLink parent;  // of rank 0 not valid
  Children children;
};
Result<Formed> form_as_root(const Context& context);
Result<Formed> form_as_guest(const Context& context);

// "rank 3 on node7 (process 4711)".
std::string describe(const ClusterMember& member);

// Where a member can be reached from `from`: loopback only on its own host.
DialTarget target_of(const ClusterMember& member, const std::string& from_host_id,
                     const SocketAddress& source);

// The texts that several ranks return.
Status missing_ranks(const Context& context, int waiting_rank, double waited_seconds,
                     const std::set<int>& missing);
Status cannot_reach(const ClusterMember& from, const ClusterMember& to, const Dialled& dialled);
Status lost_while_joining(const std::string& who);
// What the others are told of a failure that `who` has found: an interrupt is its own alone.
Status for_others(const Status& status, const std::string& who);
std::string why_refused(const JobSecret& secret);

}  // namespace collective_ops::forming
