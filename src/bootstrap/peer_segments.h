// The peers' heap segments, mapped here on first use, once for all groups of the process. The owner
// publishes a segment to the members of a group before their first call that uses memory of it; a peer
// that meets an unknown id takes it from the mailbox. Each publication lists the owner's live segments,
// and peers drop what is not in it: so mappings never outnumber what owners hold by more than what they
// released since their last one, and what a group still holds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <collective_ops/status.h>

#include "bootstrap/mailbox.h"
#include "memory/shared_heap.h"
#include "memory/shared_segment.h"

namespace collective_ops {

// Any thread; nobody waits for another one's wait.
class PeerSegments {
 public:
  // Stays mapped as long as somebody holds it, also when its owner has released it meanwhile.
  using Mapping = std::shared_ptr<const SharedSegment>;

  // `mailbox` may be null where world_size is 1; it and `heap` must outlive this.
  PeerSegments(Mailbox* mailbox, int rank, int world_size, SharedHeap& heap = SharedHeap::instance());

  // A peer's segment. Waits for its publication where needed. Errors of Mailbox::receive, and of
  // SharedSegment::map.
  Result<Mapping> map(int rank, uint32_t segment_id, int64_t deadline_ns,
                      const std::function<Status()>& interrupted = {});

  // nullptr where the segment is not mapped, or is no more.
  Mapping known(int rank, uint32_t segment_id) const;

  // Rises when mappings were dropped: who keeps some then looks which are still known.
  uint64_t drops() const { return drops_.load(std::memory_order_acquire); }

  // Sends a segment of our heap to these ranks (this one left out), once to each. kPeerLost where one has
  // left.
  Status publish(uint32_t segment_id, std::span<const int> ranks);

  // Maps what peers have published so far, without waiting.
  Status collect();

 private:
  struct Entry {
    uint32_t id = 0;
    Mapping segment;
  };
  // What is known of a peer, and what it knows.
  struct Peer {
    std::vector<Entry> segments;
    uint64_t newest = 0;              // of its publications, the number
    std::vector<uint32_t> live;       // and what that one listed
    bool complete = false;            // whether it listed all
    std::vector<uint32_t> published;  // to it, by us
  };
  Status take(Message message);
  std::vector<int> unaware(uint32_t segment_id, std::span<const int> ranks) const;

  Mailbox* mailbox_;
  int rank_;
  int world_size_;
  SharedHeap& heap_;
  mutable std::mutex mutex_;  // of what follows; never held while waiting or sending
  std::vector<Peer> peers_;
  uint64_t publications_ = 0;
  std::atomic<uint64_t> drops_{0};
};

}  // namespace collective_ops
