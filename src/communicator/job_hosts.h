// A job on several hosts: where its ranks are, and how their processes connect.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "communicator/members.h"
#include "memory/private_descriptor.h"

namespace collective_ops {

// Connections between processes of the job; ranks are those of the world. Any thread.
class HostConnector {
 public:
  virtual ~HostConnector() = default;
  // A connected TCP socket that the peer gets the other end of, by asking for the same channel meanwhile.
  virtual Result<PrivateDescriptor> connect(int rank, uint64_t channel, int64_t deadline_ns,
                                            const std::function<Status()>& interrupted) = 0;
  // The same of one direction: who dials waits for an answer, and the peer finds the other end by take().
  virtual Result<PrivateDescriptor> dial(int rank, uint64_t channel, int64_t deadline_ns,
                                         const std::function<Status()>& interrupted) = 0;
  // What `rank` has dialled; nothing where it has not. Does not wait.
  virtual std::optional<PrivateDescriptor> take(int rank, uint64_t channel) = 0;
  // Readable where look() has something to do; -1: never.
  virtual int pollable() const = 0;
  // Answers peers that want to connect. Not ok once a rank of the job has died, wherever it was. Never
  // blocks.
  virtual Status look() = 0;
  // "rank 3 on node7 (pid 4711)".
  virtual std::string describe(int rank) const = 0;
};

struct JobHosts {
  std::vector<int> host_of;   // by rank of the world
  std::vector<int> place_of;  // among the ranks of its host, by rank of the world
  std::vector<int> world_of;  // of this host's ranks, by place
  int host = 0;               // this one
  std::shared_ptr<HostConnector> connector;

  // `host_of` by rank of the world; `rank` is this one.
  static JobHosts of(std::vector<int> host_of, int rank, std::shared_ptr<HostConnector> connector);
};

// The hosts of a group's ranks. Hosts are numbered by their lowest rank in the group.
struct GroupHosts {
  std::vector<std::vector<int>> ranks;  // of the group, by host, ascending
  std::vector<int> host_of;             // by rank
  std::vector<int> index_of;            // among the ranks of its host, by rank
  int own = 0;                          // this rank's host
  int columns = 0;        // ranks of the host that has fewest: of each host so many talk to others
  bool single = false;    // whether no host has two
  bool in_order = false;  // whether ranks of a host stand side by side, and hosts in the order of ranks

  // `world_ranks` by rank of the group, of which `rank` is this one.
  GroupHosts(const JobHosts& job, std::span<const int> world_ranks, int rank);

  int size() const { return static_cast<int>(ranks.size()); }
  const std::vector<int>& here() const { return ranks[static_cast<size_t>(own)]; }
};

// Of ranks that are threads of one process, one for each; over the loopback interface.
std::vector<std::shared_ptr<HostConnector>> make_thread_connectors(int world_size);

// The part of a group that is on this host.
Members members_here(const JobHosts& job, const Members& whole);

}  // namespace collective_ops
