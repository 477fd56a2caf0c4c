// The groups that this process is in. One that has all ranks of a new group makes it (create_group of the
// core): so a process's groups share what they have in common, its trace among it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <collective_ops/communicator.h>

#include "torch/processes.h"

namespace collective_ops::pytorch {

// Who is in a group, by rank in it.
struct Roster {
  std::string job;  // equal on its ranks, and no other group's
  bool several_hosts = false;
  std::vector<uint64_t> global_ranks;  // of torch.distributed's world
  std::vector<ProcessPlace> processes;

  uint64_t global(int rank) const { return global_ranks[static_cast<size_t>(rank)]; }
};

// A group's communicator until it is left.
class Membership {
 public:
  Membership(std::shared_ptr<Communicator> communicator, Roster roster)
      : roster_(std::move(roster)), communicator_(std::move(communicator)) {}
  const Roster& roster() const { return roster_; }
  std::shared_ptr<Communicator> communicator();  // nullptr once left
  void leave();                                  // finishes what was started

 private:
  const Roster roster_;
  std::mutex mutex_;
  std::shared_ptr<Communicator> communicator_;
};

// From here on it is found by those below, until it is left.
std::shared_ptr<Membership> remember(std::shared_ptr<Communicator> communicator, Roster roster);

// A group of this process that another one can be made of: with their ranks in it.
struct Parent {
  std::shared_ptr<Communicator> communicator;
  Roster roster;           // of the new group: who its ranks are
  std::vector<int> ranks;  // of them in the parent
};
// The largest that has all these, `rank` of which is this process; equal on ranks that are in the same
// groups.
std::optional<Parent> find_parent(const std::vector<uint64_t>& global_ranks, int rank);

// Leaves every group of this process: before Python ends, while threads may still ask for the GIL. With a
// reason nothing is finished first: calls end with it, here and on the other ranks.
void shutdown_all(const std::string& reason);

}  // namespace collective_ops::pytorch
