// Ranks that are processes of one host: buffers of the shared heap are mapped on first use.
#include <cerrno>
#include <cstring>

#include <sys/uio.h>

#include <fmt/format.h>

#include "bootstrap/liveness.h"
#include "bootstrap/peer_segments.h"
#include "bootstrap/rendezvous.h"
#include "communicator/peers.h"
#include "memory/shared_heap.h"

namespace collective_ops {
namespace {

class ProcessPeers final : public Peers {
 public:
  explicit ProcessPeers(HostGroup& group)
      : group_(group),
        watch_(group.peers, group.rank),
        segments_(group.mailbox.get(), group.rank, group.world_size) {}

  std::string find_lost(const std::function<bool(int)>& excused) override {
    if (!watch_.check()) return {};
    for (const DeadPeer& dead : watch_.check_all()) {
      if (!excused(dead.rank))
        return fmt::format("rank {} (pid {}) was lost: {}", dead.rank, dead.pid, dead.how);
    }
    return {};
  }

  std::string describe(int rank) const override {
    return fmt::format("rank {} (pid {})", rank, group_.peers[static_cast<size_t>(rank)].pid);
  }

  Result<shm::MemoryRef> share(const void* pointer, size_t bytes) override {
    const auto place = SharedHeap::instance().find(pointer, bytes);
    if (!place) return shm::MemoryRef{};
    if (Status status = segments_.publish(place->segment_id); !status.ok()) return status;
    return shm::MemoryRef{place->segment_id, place->offset};
  }

  Result<std::byte*> reach(int rank, const shm::MemoryRef& reference, size_t bytes, int64_t deadline_ns,
                           const std::function<Status()>& interrupted) override {
    std::byte* base = segments_.known(rank, reference.segment);
    if (base == nullptr) {
      auto mapped = segments_.address(rank, reference.segment, deadline_ns, interrupted);
      if (!mapped.ok()) return mapped.status();
      base = *mapped;
    }
    const size_t size = segments_.size_of(rank, reference.segment);
    if (rank != group_.rank && (reference.offset > size || bytes > size - reference.offset)) {
      return Status(ErrorCode::kInternal,
                    fmt::format("rank {} announced {} bytes at offset {} of a segment of {}", rank, bytes,
                                reference.offset, size));
    }
    return base + reference.offset;
  }

  Status read(int rank, const std::byte* from, std::byte* to, size_t bytes) override {
    const pid_t pid = group_.peers[static_cast<size_t>(rank)].pid;
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
  HostGroup& group_;
  PeerWatch watch_;
  PeerSegments segments_;
};

}  // namespace

std::unique_ptr<Peers> make_process_peers(HostGroup& group) { return std::make_unique<ProcessPeers>(group); }

}  // namespace collective_ops
