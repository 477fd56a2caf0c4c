// What a Communicator holds.
#pragma once

#include <functional>
#include <memory>

#include <collective_ops/communicator.h>

#include "communicator/call_queue.h"
#include "communicator/group.h"
#include "communicator/host.h"

namespace collective_ops {

struct Communicator::Parts {
  std::shared_ptr<Host> host;         // of this communicator and all groups made from it
  std::shared_ptr<std::byte> memory;  // of a group; the world's is the host's
  std::shared_ptr<CallQueue> queue;
};

// Deadline and forced paths, from the options and the environment.
Result<GroupSettings> settings_of(const ConnectOptions& options);

// The end of a group whose members are `settings`: on this host alone, or where they have members elsewhere,
// a spanning one. `rank`: of the group. `settings.rank` and `memory`: among those on this host.
std::unique_ptr<GroupEnd> make_group_end(const shm::GroupMemory& memory, std::unique_ptr<Peers> peers,
                                         GroupSettings settings, int rank,
                                         const std::function<Status()>& interrupted);

}  // namespace collective_ops
