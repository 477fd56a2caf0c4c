// Where messages between two ranks pass: the part of a group's memory behind the channels.
//
// Each ordered pair of ranks has a ring of lines of 64 bytes, with one writer and one reader. A record is an
// Envelope, one line, and the lines of its payload. The reader looks at the envelope's first word alone; the
// writer stores it last, after it has cleared the first word of the next envelope.
//
// Each rank has a box: a bell on which its threads sleep, and a bit per rank that has ever written to it, so
// that nobody looks at pages that were never used. For large messages it has slots, one for each that is
// under way: words by which receiver and sender agree who copies, and when the buffer is free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <collective_ops/types.h>

#include "transport/shm/group_memory.h"

namespace collective_ops::shm {

inline constexpr size_t kTinyBytes = 40;  // payload that fits the envelope
inline constexpr uint32_t kMessageSlots = 1u << 14;

enum class EnvelopeKind : uint8_t {
  kWhole,  // a message with its payload
  kLarge,  // announces one whose payload stays with the sender until it is matched
  kPart,   // a part of the payload of such a one
};

struct alignas(kCacheLine) Envelope {
  std::atomic<uint32_t> lines;  // of the record, this one included; 0: not there yet. Stored last.
  EnvelopeKind kind;
  DataType type;
  int32_t tag;
  uint32_t slot;   // of kLarge and kPart: the sender's
  uint64_t bytes;  // of the message; of kPart: of this part
  union {
    std::byte tiny[kTinyBytes];
    struct {
      uint64_t address;  // in the sender's process
      MemoryRef shared;  // segment 0: private memory
    } place;             // of kLarge
    uint64_t at;         // of kPart: where in the message it begins
  };
};
static_assert(sizeof(Envelope) == kCacheLine);

// The state of a large message. The sender announces and withdraws, the receiver does the rest.
enum class SlotState : uint32_t {
  kFree,
  kAnnounced,
  kClaimed,    // the receiver copies from the sender's memory
  kWanted,     // the receiver cannot reach that memory: the sender shall write parts
  kDone,       // the receiver has copied
  kWithdrawn,  // one of them has failed; slots of a broken group are never used again
};

// Who of a rank's process sleeps on its bell, as bits of MessageBox::sleepers and of futex wake-ups.
inline constexpr uint32_t kCallers = 1;  // threads inside a call or a wait
inline constexpr uint32_t kServer = 2;   // the thread that goes on with what was started

struct alignas(2 * kCacheLine) MessageBox {
  std::atomic<uint32_t> bell;      // a futex; raised where somebody sleeps
  std::atomic<uint32_t> sleepers;  // kCallers, kServer: must be woken when something changes
  std::atomic<uint32_t> closing;   // 1: this rank takes no further message
  alignas(kCacheLine) std::atomic<uint64_t> writers[kMaxRanks / 64];
};

// A view of that part of the memory; owns nothing. Zeroed bytes are valid: no message yet.
class MessageMemory {
 public:
  static size_t bytes_needed(int world_size);
  static size_t ring_bytes(int world_size);

  MessageMemory() = default;
  MessageMemory(std::byte* base, int world_size);

  MessageBox& box(int rank) const { return boxes_[rank]; }
  std::atomic<SlotState>& slot(int rank, uint32_t slot) const {
    return slots_[static_cast<size_t>(rank) * kMessageSlots + slot];
  }
  std::byte* ring(int from, int to) const;

  // After a change that `rank` may wait for: wakes it where it sleeps. Cheap where it does not.
  void notify(int rank) const;
  // Wakes those of `rank` whose bits are given, without asking.
  void wake(int rank, uint32_t who) const;
  // Sleeps until the bell differs from `seen`, at most `ns`.
  void sleep(int rank, uint32_t seen, uint32_t who, int64_t ns) const;

 private:
  int world_size_ = 0;
  MessageBox* boxes_ = nullptr;
  std::atomic<SlotState>* slots_ = nullptr;
  std::byte* rings_ = nullptr;
};

struct RingHeader {
  alignas(kCacheLine) std::atomic<uint64_t> read;          // lines that the reader is done with
  alignas(kCacheLine) std::atomic<uint32_t> writer_waits;  // for room
};

// The writer's end. One thread at a time.
class RingWriter {
 public:
  RingWriter(std::byte* memory, size_t bytes);

  // The envelope of a record with so much payload behind it, to be filled in; nullptr where there is no room:
  // the reader will notify this rank once there is more.
  Envelope* begin(size_t payload);
  // Hands it to the reader.
  void commit(Envelope& envelope, const std::byte* payload, size_t bytes);

  size_t most_payload() const { return (lines_ / 4) * kCacheLine; }  // of one record

 private:
  bool has_room(size_t lines);

  RingHeader* header_;
  std::byte* ring_;
  size_t lines_;
  size_t at_ = 0;         // line of the next envelope
  uint64_t written_ = 0;  // lines
  uint64_t read_ = 0;     // as last seen
};

// The reader's end. One thread at a time.
class RingReader {
 public:
  RingReader(std::byte* memory, size_t bytes);

  const Envelope* front() const {
    const auto* envelope = reinterpret_cast<const Envelope*>(ring_ + at_ * kCacheLine);
    return envelope->lines.load(std::memory_order_acquire) == 0 ? nullptr : envelope;
  }
  // The payload behind the front envelope.
  void copy_payload(std::byte* to, size_t bytes) const;
  // Gives its lines back; true where the writer waits for room, and is to be notified.
  bool pop();

 private:
  RingHeader* header_;
  std::byte* ring_;
  size_t lines_;
  size_t at_ = 0;
  uint64_t read_ = 0;
};

}  // namespace collective_ops::shm
