// The peers' heap segments, mapped here on first use. The owner publishes a segment to all peers
// before the first call that uses memory of it; a peer that meets an unknown id takes it from the
// mailbox. Each publication lists the owner's live segments, and peers unmap what is not in it: so
// mappings never outnumber what owners hold by more than what they released since their last one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <collective_ops/status.h>

#include "bootstrap/mailbox.h"
#include "memory/shared_heap.h"
#include "memory/shared_segment.h"

namespace collective_ops {

// Used by one thread at a time.
class PeerSegments {
 public:
  // `mailbox` may be null where world_size is 1; it and `heap` must outlive this.
  PeerSegments(Mailbox* mailbox, int rank, int world_size, SharedHeap& heap = SharedHeap::instance());

  // Where the segment begins in this process; nullptr where it is not mapped yet. A few nanoseconds.
  std::byte* known(int rank, uint32_t segment_id) const {
    const auto& segments = peers_[static_cast<size_t>(rank)];
    for (const auto& entry : segments) {
      if (entry.id == segment_id) return entry.data;
    }
    return nullptr;
  }

  // The same, but waits for the owner's publication where needed. Errors of Mailbox::receive, and of
  // SharedSegment::map.
  Result<std::byte*> address(int rank, uint32_t segment_id, int64_t deadline_ns,
                             const std::function<Status()>& interrupted = {});

  // Bytes of a mapped segment; 0 where it is not mapped. An offset of a peer must lie below it.
  size_t size_of(int rank, uint32_t segment_id) const;

  // Sends a segment of our heap to all peers, once. kPeerLost where one has left.
  Status publish(uint32_t segment_id);

  // Maps what peers have published so far, without waiting.
  Status collect();

  void forget(int rank, uint32_t segment_id);

 private:
  struct Entry {
    uint32_t id = 0;
    std::byte* data = nullptr;
    SharedSegment segment;
  };
  Status take(Message message);

  Mailbox* mailbox_;
  int rank_;
  int world_size_;
  SharedHeap& heap_;
  std::vector<std::vector<Entry>> peers_;
  std::vector<uint32_t> published_;
};

}  // namespace collective_ops
