// The processes of a job on one or several hosts: who they are, where, and connections between any two of
// them. A connection is made when somebody asks for it, and is authenticated in both directions by the job's
// secret before anything else is read from it. Keeps no thread: whoever waits in a function here also answers
// the peers that are knocking; who waits elsewhere polls pollable() and calls serve().
//
//   auto place = find_meeting_place(options);                          // meeting_place.h: where rank 0 is
//   found auto cluster = Cluster::join(**place, {.rank = 3, .world_size = 16}); auto socket =
//   (*cluster)->connect(0, Purpose::kData, channel, deadline_ns, interrupted);   // here auto socket =
//   (*cluster)->accept(3, Purpose::kData, channel, deadline_ns, interrupted);    // on rank 0
//
// All functions may be called by several threads at once.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "bootstrap/address.h"
#include "memory/private_descriptor.h"

namespace collective_ops {

struct MeetingPlace;  // meeting_place.h

inline constexpr int kMaxClusterRanks = 16384;

struct ClusterOptions {
  int rank = 0;
  int world_size = 1;
  std::string job;                      // as on all ranks; part of what connections prove
  int64_t deadline_ns = 0;              // monotonic; for all ranks to come
  std::function<Status()> interrupted;  // asked about ten times a second; a failure ends the wait with it
};

struct ClusterMember {
  int rank = 0;
  int32_t pid = 0;
  int64_t start_time = 0;                // of the process, clock ticks after boot of its host
  std::string host_id;                   // boot id and network namespace: equal where ranks share a host
  std::string host_name;                 // for texts
  std::vector<SocketAddress> addresses;  // of its listener, best first
  int host = 0;                          // hosts are numbered by their lowest rank
  int local_rank = 0;                    // place among the ranks of its host, ascending by rank
};

// What a connection is for. Each pair has as many as it likes of each, told apart by `channel`.
enum class Purpose : uint32_t {
  kRegister = 1,  // of the bootstrap itself, as the next one
  kTree,
  kData,  // the transport's
};

class Cluster {
 public:
  // Blocks until all ranks have come, or fails on all that wait, with one text:
  //   kRendezvous       ranks are missing at the deadline, one died or gave up, world sizes differ, two hosts
  //                     cannot reach each other, or several hosts have no secret; each is named
  //   kDuplicateRank    a rank came twice
  //   kVersionMismatch  other builds
  //   kInvalidArgument  an address, port or variable that cannot be used
  static Result<std::unique_ptr<Cluster>> join(const MeetingPlace& meeting, const ClusterOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  int rank() const;
  int world_size() const;
  const std::vector<ClusterMember>& members() const;  // by rank
  const ClusterMember& self() const { return members()[static_cast<size_t>(rank())]; }

  // Hosts by number, each with its ranks, ascending.
  const std::vector<std::vector<int>>& hosts() const;
  int local_size() const { return static_cast<int>(hosts()[static_cast<size_t>(self().host)].size()); }
  // The job id by which the ranks of this host join each other (ConnectOptions::job_id with local_rank and
  // local_size): fresh with each join, so jobs never meet.
  const std::string& local_job() const;
  // "rank 3 on node7 (process 4711)".
  std::string describe(int rank) const;

  // A connected TCP socket: non-blocking, close-on-exec, TCP_NODELAY, keepalive; nothing but the two proofs
  // has gone over it. One side connects, the other accepts; which one is for the callers to agree on.
  // kTimeout at `deadline_ns`, kRendezvous where the peer cannot be reached or does not know the secret,
  // kPeerLost where it has died, kSystem where no descriptor is left. While waiting, others are answered.
  Result<PrivateDescriptor> connect(int peer, Purpose purpose, uint64_t channel, int64_t deadline_ns,
                                    const std::function<Status()>& interrupted = {});
  Result<PrivateDescriptor> accept(int peer, Purpose purpose, uint64_t channel, int64_t deadline_ns,
                                   const std::function<Status()>& interrupted = {});

  // For who polls for itself. Readable when serve() has something to do; stays the same descriptor.
  int pollable() const;
  // Answers who is knocking and reads news of deaths. Never blocks. The status is failure()'s.
  Status serve();
  // A connection that a peer has made, if it is there already. Does not call serve().
  std::optional<PrivateDescriptor> take(int peer, Purpose purpose, uint64_t channel);

  // What is known to have gone wrong: kPeerLost where a rank died anywhere in the job (all ranks hear of it,
  // with its name), or what a rank announced. Ok otherwise. Costs one atomic load while all is well.
  Status failure() const;
  // Makes `status` the failure() of all ranks that have none yet. Returns at once.
  void announce(const Status& status);
  // Says that this rank leaves as it should: its end is no failure of the others. The destructor does it too.
  void leave();

 private:
  struct Impl;
  explicit Cluster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace collective_ops
