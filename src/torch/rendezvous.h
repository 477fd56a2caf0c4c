// How the ranks of a process group become ranks of one communicator: over c10d's store, which tells them a
// fresh job and, where they are on several hosts, where rank 0 is; then as everywhere.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <collective_ops/communicator.h>

#include "torch/pytorch.h"

namespace collective_ops::pytorch {

// Raises where ranks are missing, or on several hosts without a secret. `timeout` 0: waits for ever.
std::shared_ptr<Communicator> join(const c10::intrusive_ptr<c10d::Store>& store, const std::string& group,
                                   int rank, int size, std::chrono::milliseconds timeout);

// As the core wants it: 0 for ever. Longer than a year is for ever too.
std::chrono::milliseconds core_timeout(std::chrono::milliseconds timeout);

}  // namespace collective_ops::pytorch
