// Where SharedBuffers come from: memory of this process that peers can map, so that collectives on it
// copy nothing. One heap per process, made of memfd segments. Peers name a place in it by
// {segment id, offset}; find() turns a pointer into that, on every call, without a lock.
//
// What keeps memory bounded: an empty segment is kept for reuse, so that a loop of allocations makes
// no new segments; empty ones beyond max(64 MiB, the most bytes ever live at once) are released, and
// all are when memory runs short. A released segment's pages go back to the system at once even where
// a peer still maps it; its id is never used again; peers drop the mapping with the next segment that
// is published to them (bootstrap/peer_segments.h).
//
// A buffer with pages of its own is a segment, which is never reused: what peers have mapped of it stays as
// it is until the last of them lets go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <collective_ops/communicator.h>
#include <collective_ops/status.h>

#include "memory/descriptor.h"

namespace collective_ops {

struct SegmentOffset {
  uint32_t segment_id = 0;  // from 1 on
  uint64_t offset = 0;      // bytes
};

struct SegmentInfo {
  uint32_t id = 0;
  std::byte* data = nullptr;
  size_t size = 0;  // bytes
  size_t used = 0;  // bytes in live buffers
};

// Bytes of the whole heap, for tests and reports.
struct HeapUsage {
  size_t segments = 0;
  size_t mapped = 0;
  size_t used = 0;
};

class SharedHeap {
 public:
  // Never destroyed: buffers may outlive static objects.
  static SharedHeap& instance();

  SharedHeap();
  ~SharedHeap();
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  // Aligned to 64 bytes, from 2 MiB on to 4 KiB. Pages are taken at once (no signal when touched
  // later), contents are unspecified. Size 0 gives a valid buffer. Any thread.
  // kOutOfMemory where it does not fit, kNotInitialized in a child after fork.
  Result<std::shared_ptr<SharedBuffer>> allocate(size_t bytes) { return allocate(bytes, false); }
  // With pages of its own, zeroed, page-aligned.
  Result<std::shared_ptr<SharedBuffer>> allocate_alone(size_t bytes) { return allocate(bytes, true); }

  // The place of [pointer, pointer + bytes) if all of it lies in one segment. Lock-free.
  std::optional<SegmentOffset> find(const void* pointer, size_t bytes) const;

  // A new descriptor of a live segment. kInvalidArgument where `id` is none.
  Result<Descriptor> segment_fd(uint32_t id) const;
  std::byte* segment_data(uint32_t id) const;   // nullptr where `id` is none
  std::vector<uint32_t> live_segments() const;  // ascending
  void for_each_segment(const std::function<void(const SegmentInfo&)>& visit) const;
  HeapUsage usage() const;

  // Releases every empty segment.
  void trim();

  // True in a child of fork: its memory is still shared with the parent, but it must hand none out.
  bool forked() const;

 private:
  friend class HeapBuffer;
  struct Impl;
  Result<std::shared_ptr<SharedBuffer>> allocate(size_t bytes, bool alone);
  std::shared_ptr<Impl> impl_;  // shared with live buffers
};

}  // namespace collective_ops
