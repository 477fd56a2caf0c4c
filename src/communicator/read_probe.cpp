#include "communicator/read_probe.h"

namespace collective_ops {

ReadProbe::ReadProbe(const shm::GroupMemory& memory, int rank)
    : memory_(memory), rank_(rank), found_(static_cast<size_t>(memory.world_size())) {
  static const uint64_t probe = shm::kProbe;
  memory_.state(rank).probe.store(reinterpret_cast<uint64_t>(&probe), std::memory_order_release);
}

bool ReadProbe::reads(int peer, Peers& peers) {
  if (peer == rank_) return true;
  std::atomic<uint32_t>& found = found_[static_cast<size_t>(peer)];
  if (found.load(std::memory_order_relaxed) == shm::kReadsUnknown) {
    const uint64_t address = memory_.state(peer).probe.load(std::memory_order_acquire);
    uint64_t seen = 0;
    const bool reads = address != 0 &&
                       peers.can_read(peer, reinterpret_cast<const std::byte*>(address),
                                      reinterpret_cast<std::byte*>(&seen), sizeof(seen)) &&
                       seen == shm::kProbe;
    found.store(reads ? shm::kReads : shm::kReadsNot, std::memory_order_relaxed);
  }
  return found.load(std::memory_order_relaxed) == shm::kReads;
}

bool ReadProbe::reads_all(Peers& peers) {
  std::atomic<uint32_t>& verdict = memory_.state(rank_).reads_peers;
  if (verdict.load(std::memory_order_relaxed) == shm::kReadsUnknown) {
    bool all = true;
    for (int peer = 0; peer < memory_.world_size() && all; ++peer) all = reads(peer, peers);
    verdict.store(all ? shm::kReads : shm::kReadsNot, std::memory_order_release);
  }
  return verdict.load(std::memory_order_relaxed) == shm::kReads;
}

uint32_t ReadProbe::verdict_of(int peer) const {
  return memory_.state(peer).reads_peers.load(std::memory_order_acquire);
}

}  // namespace collective_ops
