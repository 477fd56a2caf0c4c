// What the groups of one process share: the ranks it joined with, and the mappings of their memory.
#pragma once

#include <memory>

#include "bootstrap/peer_segments.h"
#include "bootstrap/rendezvous.h"
#include "communicator/members.h"
#include "communicator/peers.h"

namespace collective_ops {

struct SharedPeers {
  explicit SharedPeers(HostGroup group)
      : joined(std::move(group)), segments(joined.mailbox.get(), joined.rank, joined.world_size) {}

  HostGroup joined;
  PeerSegments segments;
};

std::unique_ptr<Peers> make_process_peers(std::shared_ptr<SharedPeers> shared, const Members& members);

}  // namespace collective_ops
