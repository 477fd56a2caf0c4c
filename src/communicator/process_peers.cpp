// Ranks that are processes of one host: buffers of the shared heap are mapped on first use.
#include "communicator/process_peers.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include <sys/uio.h>

#include <fmt/format.h>

#include "bootstrap/liveness.h"
#include "memory/shared_heap.h"

namespace collective_ops {
namespace {

class ProcessPeers final : public Peers {
 public:
  ProcessPeers(std::shared_ptr<SharedPeers> shared, const Members& members)
      : shared_(std::move(shared)),
        members_(members),
        ranks_(members.ranks),
        mappings_(ranks_.size()) {}

  std::string find_lost(const std::function<bool(int)>& excused) override {
    if (!watch_) watch_.emplace(shared_->watched(), shared_->joined.rank, ranks_);
    if (!watch_->check()) return {};
    for (const DeadPeer& dead : watch_->check_all()) {
      const auto place = std::find(ranks_.begin(), ranks_.end(), dead.rank);
      if (!excused(static_cast<int>(place - ranks_.begin())))
        return fmt::format("rank {} (pid {}) was lost: {}",
                           members_.world_rank(static_cast<int>(place - ranks_.begin())), dead.pid, dead.how);
    }
    return {};
  }

  std::string describe(int rank) const override {
    return fmt::format("rank {} (pid {})", members_.world_rank(rank), process(rank).pid);
  }

  Result<shm::MemoryRef> share(const void* pointer, size_t bytes) override {
    // Here and not in reach(): nothing of this call is mapped yet that could go while it is used.
    if (const uint64_t drops = shared_->segments.drops(); drops != drops_seen_) forget_dropped(drops);
    const auto place = SharedHeap::instance().find(pointer, bytes);
    if (!place) return shm::MemoryRef{};
    if (std::find(published_.begin(), published_.end(), place->segment_id) == published_.end()) {
      if (Status status = publish(place->segment_id); !status.ok()) return status;
    }
    return shm::MemoryRef{place->segment_id, place->offset};
  }

  Result<std::byte*> reach(int rank, const shm::MemoryRef& reference, size_t bytes, int64_t deadline_ns,
                           const std::function<Status()>& interrupted) override {
    const SharedSegment* segment = find(rank, reference.segment);
    if (segment == nullptr) {
      auto mapped = shared_->segments.map(rank_here(rank), reference.segment, deadline_ns, interrupted);
      if (!mapped.ok()) return mapped.status();
      segment = mapped->get();
      mappings_[static_cast<size_t>(rank)].push_back({reference.segment, std::move(*mapped)});
    }
    const size_t size = segment->size();
    if (reference.offset > size || bytes > size - reference.offset) {
      return Status(ErrorCode::kInternal,
                    fmt::format("rank {} announced {} bytes at offset {} of a segment of {}",
                                members_.world_rank(rank), bytes, reference.offset, size));
    }
    return segment->data() + reference.offset;
  }

  Status read(int rank, const std::byte* from, std::byte* to, size_t bytes) override {
    const pid_t pid = process(rank).pid;
    while (bytes > 0) {
      const iovec local{to, bytes};
      const iovec remote{const_cast<std::byte*>(from), bytes};
      const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
      if (got <= 0) {
        if (got < 0 && errno == EINTR) continue;
        return Status(errno == ESRCH ? ErrorCode::kPeerLost : ErrorCode::kSystem,
                      fmt::format("process_vm_readv of {} bytes from {}: {}", bytes, describe(rank),
                                  got == 0 ? "nothing read" : std::strerror(errno)));
      }
      from += got;
      to += got;
      bytes -= static_cast<size_t>(got);
    }
    return {};
  }
  bool can_read(int rank, const std::byte* from, std::byte* to, size_t bytes) override {
    return read(rank, from, to, bytes).ok();
  }

 private:
  // What this group uses of the process's mappings, found without a lock.
  struct Known {
    uint32_t id;
    PeerSegments::Mapping segment;
  };

  int rank_here(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  const PeerProcess& process(int rank) const {
    return shared_->joined.peers[static_cast<size_t>(rank_here(rank))];
  }

  const SharedSegment* find(int rank, uint32_t id) const {
    for (const Known& known : mappings_[static_cast<size_t>(rank)]) {
      if (known.id == id) return known.segment.get();
    }
    return nullptr;
  }

  Status publish(uint32_t id) {
    if (Status status = shared_->segments.publish(id, ranks_); !status.ok()) return status;
    const std::vector<uint32_t> live = SharedHeap::instance().live_segments();
    std::erase_if(published_,
                  [&](uint32_t old) { return !std::binary_search(live.begin(), live.end(), old); });
    published_.push_back(id);
    return {};
  }

  // Their owners have released them, so no call will name them again.
  void forget_dropped(uint64_t drops) {
    drops_seen_ = drops;
    for (size_t rank = 0; rank < mappings_.size(); ++rank) {
      std::erase_if(mappings_[rank], [&](const Known& known) {
        return shared_->segments.known(ranks_[rank], known.id) != known.segment;
      });
    }
  }

  std::shared_ptr<SharedPeers> shared_;
  Members members_;
  std::vector<int> ranks_;  // of this host
  std::optional<PeerWatch> watch_;  // once somebody was waited for
  std::vector<std::vector<Known>> mappings_;  // by rank
  std::vector<uint32_t> published_;           // segments of ours that all members know of
  uint64_t drops_seen_ = 0;
};

}  // namespace

std::unique_ptr<Peers> make_process_peers(std::shared_ptr<SharedPeers> shared, const Members& members) {
  return std::make_unique<ProcessPeers>(std::move(shared), members);
}

}  // namespace collective_ops
