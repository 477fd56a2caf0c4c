// The memory that the ranks of a group on one host share, and who may write what.
//
// Every word here has one writer: the rank it belongs to (the failure record: the first to fail).
// A call is announced by a Line: 64 bytes that hold the call's signature, where its buffers lie,
// or, for tiny calls, the payload itself. A rank keeps kLineDepth lines, for calls s, s+1, ...,
// and overwrites the one of call s - kLineDepth only when every rank has finished that call; so it does with
// the slots of larger payloads, of which there are kLineDepth small and kEagerDepth large ones.
// Steps inside a call are announced by RankState::progress.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

namespace collective_ops::shm {

inline constexpr size_t kCacheLine = 64;
// Calls whose lines and small slots exist at once. So far ahead a rank may be that waits for nobody: ranks that
// share a core then take turns once in many calls.
inline constexpr int kLineDepth = 64;
inline constexpr int kEagerDepth = 16;            // calls whose large slots exist at once
inline constexpr size_t kInlineBytes = 40;        // payload that fits in a line
inline constexpr size_t kSmallBytes = 1024;       // payload of a small slot
inline constexpr size_t kEagerBytes = 64 * 1024;  // payload of a large slot
// Slots lie at no power of two from each other: small payloads would share few sets of the caches.
inline constexpr size_t kSmallStride = kSmallBytes + 2 * kCacheLine;
inline constexpr size_t kEagerStride = kEagerBytes + 2 * kCacheLine;
inline constexpr size_t kScratchBytes = 2 << 20;  // staging memory of a rank
inline constexpr int kMaxRanks = 1024;

// For whoever looks at the memory from outside (communicator/status.h). Another layout of header, states
// or lines is another version.
inline constexpr uint64_t kGroupMagic = 0x50554f5247504f43;  // "COPGROUP"
inline constexpr uint32_t kGroupLayoutVersion = 4;
inline constexpr size_t kJobBytes = 512;
inline constexpr size_t kNameBytes = 128;  // of a group, the zero at its end included

// Announced in place of a call that failed before it began, so that peers in that call learn of it.
inline constexpr uint8_t kFailedCall = 0xff;

// What all ranks must agree on. Two words, so that comparing a peer's call costs two compares.
struct Signature {
  uint64_t head = 0;   // sequence (low 32 bits), collective, type, op, 1 where for a device's call
  uint64_t shape = 0;  // count (low 48 bits), root; of v variants a hash of the counts
  // Of a part of a call that ranks of several hosts make: the number of that call. 0: its sequence is that.
  uint32_t number = 0;

  static Signature of(uint32_t sequence, Collective collective, DataType type, ReduceOp op, uint64_t count,
                      int root, bool for_device = false) {
    return {sequence | uint64_t(collective) << 32 | uint64_t(type) << 40 | uint64_t(op) << 48 |
                uint64_t(for_device) << 56,
            (count & ((uint64_t{1} << 48) - 1)) | uint64_t(root) << 48};
  }
  static Signature of_failed(uint32_t sequence) { return {sequence | uint64_t{kFailedCall} << 32, 0}; }
  bool failed() const { return (head >> 32 & 0xff) == kFailedCall; }
  uint32_t sequence() const { return static_cast<uint32_t>(head); }
  uint32_t shown() const { return number != 0 ? number : sequence(); }
  // The same call, as the part of it that is the group's call `part`.
  Signature as_part(uint32_t part) const { return {head >> 32 << 32 | part, shape, sequence()}; }
  Collective collective() const { return static_cast<Collective>(head >> 32 & 0xff); }
  DataType type() const { return static_cast<DataType>(head >> 40 & 0xff); }
  ReduceOp op() const { return static_cast<ReduceOp>(head >> 48 & 0xff); }
  bool for_device() const { return (head >> 56) != 0; }
  uint64_t count() const { return shape & ((uint64_t{1} << 48) - 1); }
  int root() const { return static_cast<int>(shape >> 48); }

  // The history after this call, given that before it.
  uint32_t after(uint32_t history) const {
    const uint64_t mixed = (history ^ (head >> 32) ^ shape * 0x9e3779b97f4a7c15ULL) * 0xff51afd7ed558ccdULL;
    return static_cast<uint32_t>(mixed >> 32);
  }
};

// Where a caller's buffer lies, as its peers can reach it. Segment 0: private memory.
struct MemoryRef {
  uint32_t segment = 0;  // of the shared heap of its process
  uint64_t offset = 0;   // bytes; with threads of one process, the address itself
};

struct alignas(kCacheLine) Line {
  std::atomic<uint64_t> head;  // Signature::head; stored last
  uint64_t shape;
  uint32_t history;  // of the calls before this one: a root that waited for nobody is checked later
  uint32_t input_segment;
  union {
    std::byte payload[kInlineBytes];
    struct {
      uint64_t input_address;  // in the rank's own process
      uint64_t output_address;
      uint64_t input_offset;  // in its segment
      uint64_t output_offset;
      uint32_t output_segment;
    } memory;
  };
};
static_assert(sizeof(Line) == kCacheLine);

inline constexpr uint64_t kProbe = 0x434f50524f424531;
inline constexpr uint32_t kReadsUnknown = 0;
inline constexpr uint32_t kReads = 1;
inline constexpr uint32_t kReadsNot = 2;

struct alignas(2 * kCacheLine) RankState {
  std::atomic<uint64_t> progress;                      // sequence << 24 | step of this rank's call
  alignas(kCacheLine) std::atomic<uint32_t> sleepers;  // peers that sleep on a word of this rank
  std::atomic<uint32_t> left;                          // 1: has left the group in an orderly way
  std::atomic<uint64_t> left_with;                     // then: sequence << 32 | history of its last call
  std::atomic<uint64_t>
      probe;  // address in this rank's process of kProbe, for peers to try to read; 0: not yet
  std::atomic<uint32_t>
      reads_peers;  // kReads or kReadsNot once tried: whether the kernel lets this rank read all of them
  std::atomic<uint32_t> number;  // of the last call, as its caller counts it: Signature::number
  // For `collective-ops status`: what this rank did last.
  std::atomic<uint64_t> issued;    // calls begun
  std::atomic<uint64_t> finished;  // calls completed
  std::atomic<int64_t> begun_ns;   // CLOCK_MONOTONIC of the last call's begin
  std::atomic<int32_t> waits_for;  // rank waited for at length, or -1
  std::atomic<int32_t> pid;        // 0: has not joined, or a thread of one process
};

// Beside the states, since it is seldom looked at.
struct alignas(kCacheLine) RankNote {
  static constexpr size_t kWords = 62;
  std::atomic<uint32_t> joined;     // 1: has mapped this memory; the world's ranks join by other means
  std::atomic<int32_t> world_rank;  // of groups: written by their first rank
  std::atomic<uint32_t> version;    // of the text; odd while it is written
  // In the world's memory: in which other groups this rank waits at length, for the others' errors. Ends
  // with a zero byte.
  std::atomic<uint64_t> text[kWords];
};
static_assert(sizeof(RankNote) == 512);

// Why the group is broken. The first rank to fail writes it; nobody clears it.
struct FailureRecord {
  std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 complete
  uint32_t code;                // ErrorCode
  char text[4000];
};

struct GroupHeader {
  std::atomic<uint64_t> magic;  // kGroupMagic once rank 0 has written the next two and the job; 0 before
  uint32_t layout_version;
  uint32_t world_size;
  std::atomic<uint32_t> ranks_out;  // ranks that have left; the last one merges the trace
  std::atomic<uint32_t> group_id;   // 0: the world
  char job[kJobBytes];              // ends with a zero byte; longer texts are cut
  char name[kNameBytes];            // of the group, likewise; "" of the world
  alignas(kCacheLine) FailureRecord failure;
};

class MessageMemory;

// A view of the shared bytes; owns nothing. Zeroed bytes are a valid, unused group.
class GroupMemory {
 public:
  static size_t bytes_needed(int world_size);

  // Bytes from the front that hold header, states, notes and lines: what an observer reads.
  static size_t bytes_observed(int world_size);

  GroupMemory() = default;
  GroupMemory(std::byte* base, int world_size);

  int world_size() const { return world_size_; }
  GroupHeader& header() const { return *reinterpret_cast<GroupHeader*>(base_); }
  RankState& state(int rank) const { return states_[rank]; }
  RankNote& note(int rank) const { return notes_[rank]; }
  Line& line(int rank, uint64_t sequence) const {
    return lines_[rank * kLineDepth + sequence % kLineDepth];
  }
  std::byte* small(int rank, uint64_t sequence) const {
    return small_ + (rank * kLineDepth + sequence % kLineDepth) * kSmallStride;
  }
  std::byte* eager(int rank, uint64_t sequence) const {
    return eager_ + (rank * kEagerDepth + sequence % kEagerDepth) * kEagerStride;
  }
  std::byte* scratch(int rank) const { return scratch_ + rank * kScratchBytes; }
  std::byte* channel(int from, int to) const;  // channel_bytes(world_size) of a Channel
  static size_t channel_bytes(int world_size);
  MessageMemory messages() const;  // message_ring.h

  // Says whose memory this is, for observers. Each rank once, before its first call.
  void introduce(int rank, int32_t pid, std::string_view job) const;

  // Of another group than the world: its first rank, before any other sees the memory.
  void name_group(uint32_t id, std::string_view name, std::span<const int> world_ranks) const;

  // Longer texts are cut. One thread of that rank at a time.
  void write_note(int rank, std::string_view text) const;
  // "" where there is none, or it changes all the time.
  std::string read_note(int rank) const;

  bool broken() const { return header().failure.state.load(std::memory_order_acquire) != 0; }
  // Records a failure unless one stands already; returns the one that stands.
  Status break_with(const Status& reason) const;
  Status failure() const;

 private:
  std::byte* base_ = nullptr;
  int world_size_ = 0;
  RankState* states_ = nullptr;
  RankNote* notes_ = nullptr;
  Line* lines_ = nullptr;
  std::byte* small_ = nullptr;
  std::byte* eager_ = nullptr;
  std::byte* scratch_ = nullptr;
  std::byte* channels_ = nullptr;
  std::byte* messages_ = nullptr;
};

}  // namespace collective_ops::shm
