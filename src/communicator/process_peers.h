// What the groups of one process share: the ranks it joined with, and the mappings of their memory.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "bootstrap/peer_segments.h"
#include "bootstrap/rendezvous.h"
#include "communicator/members.h"
#include "communicator/peers.h"

namespace collective_ops {

struct SharedPeers {
  explicit SharedPeers(HostGroup group)
      : joined(std::move(group)), segments(joined.mailbox.get(), joined.rank, joined.world_size) {}

  // The processes, opened at the first call of this: only who waits for long watches them, and opening those of
  // all ranks is a fifth of the work of joining. Any thread.
  const std::vector<PeerProcess>& watched() {
    std::call_once(opened_, [this] {
      for (PeerProcess& peer : joined.peers) peer.pidfd = open_process(peer.pid, peer.start_time);
    });
    return joined.peers;
  }

  HostGroup joined;
  PeerSegments segments;

 private:
  std::once_flag opened_;
};

std::unique_ptr<Peers> make_process_peers(std::shared_ptr<SharedPeers> shared, const Members& members);

}  // namespace collective_ops
