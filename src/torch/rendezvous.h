// How the ranks of a process group become ranks of one communicator. They meet at c10d's store, where rank 0
// tells them how to go on: as a part of a group that all of them are in, or by a fresh job and, where they
// are on several hosts, by where rank 0 is.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch/membership.h"
#include "torch/pytorch.h"

namespace collective_ops::pytorch {

struct NewGroup {
  std::string name;
  int rank = 0;
  std::vector<uint64_t> global_ranks;
  std::chrono::milliseconds timeout;  // of its calls, and for all to come; 0: for ever

  int size() const { return static_cast<int>(global_ranks.size()); }
};

// Raises where ranks are missing, have died meanwhile, or are on several hosts without a secret. Signals are
// looked at while it waits.
std::shared_ptr<Membership> join(const c10::intrusive_ptr<c10d::Store>& store, const NewGroup& group);

// As the core wants it: 0 for ever. Longer than a year is for ever too.
std::chrono::milliseconds core_timeout(std::chrono::milliseconds timeout);

}  // namespace collective_ops::pytorch
