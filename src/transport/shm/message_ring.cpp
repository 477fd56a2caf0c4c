#include "transport/shm/message_ring.h"

#include <algorithm>
#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "transport/shm/copy.h"

namespace collective_ops::shm {
namespace {

constexpr size_t kPage = 4096;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t lines_of(size_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine; }

struct Offsets {
  size_t slots, rings, end;
};

Offsets offsets_of(int world_size) {
  const size_t n = static_cast<size_t>(world_size);
  Offsets at{};
  at.slots = round_up(n * sizeof(MessageBox), kPage);
  at.rings = at.slots + n * kMessageSlots * sizeof(std::atomic<SlotState>);
  at.end = at.rings + n * n * MessageMemory::ring_bytes(world_size);
  return at;
}

}  // namespace

size_t MessageMemory::bytes_needed(int world_size) { return offsets_of(world_size).end; }

// All pairs together stay below 32 MiB up to 64 ranks; pages are only taken when used.
size_t MessageMemory::ring_bytes(int world_size) {
  return world_size <= 8 ? 128 * 1024 : world_size <= 16 ? 32 * 1024 : world_size <= 64 ? 8 * 1024 : kPage;
}

MessageMemory::MessageMemory(std::byte* base, int world_size) : world_size_(world_size) {
  const Offsets at = offsets_of(world_size);
  boxes_ = reinterpret_cast<MessageBox*>(base);
  slots_ = reinterpret_cast<std::atomic<SlotState>*>(base + at.slots);
  rings_ = base + at.rings;
}

std::byte* MessageMemory::ring(int from, int to) const {
  return rings_ + (static_cast<size_t>(from) * static_cast<size_t>(world_size_) + static_cast<size_t>(to)) *
                      ring_bytes(world_size_);
}

void MessageMemory::notify(int rank) const {
  // Whoever is about to sleep sets its bit, fences, and looks once more; so one of the two sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t who = box(rank).sleepers.load(std::memory_order_relaxed);
  if (who != 0) wake(rank, who);
}

void MessageMemory::wake(int rank, uint32_t who) const {
  std::atomic<uint32_t>& bell = box(rank).bell;
  bell.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell), FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, who);
}

void MessageMemory::sleep(int rank, uint32_t seen, uint32_t who, int64_t ns) const {
  // With a bit set the time is absolute.
  timespec until{};
  clock_gettime(CLOCK_MONOTONIC, &until);
  const int64_t nanoseconds = until.tv_nsec + ns % 1'000'000'000;
  until.tv_sec += ns / 1'000'000'000 + nanoseconds / 1'000'000'000;
  until.tv_nsec = nanoseconds % 1'000'000'000;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&box(rank).bell), FUTEX_WAIT_BITSET, seen, &until, nullptr,
          who);
}

RingWriter::RingWriter(std::byte* memory, size_t bytes)
    : header_(reinterpret_cast<RingHeader*>(memory)),
      ring_(memory + sizeof(RingHeader)),
      lines_((bytes - sizeof(RingHeader)) / kCacheLine) {}

bool RingWriter::has_room(size_t lines) {
  if (lines <= lines_ - (written_ - read_)) return true;
  read_ = header_->read.load(std::memory_order_acquire);
  return lines <= lines_ - (written_ - read_);
}

Envelope* RingWriter::begin(size_t payload) {
  const size_t lines = 1 + lines_of(payload) + 1;  // the next envelope's line is cleared before
  if (!has_room(lines)) {
    header_->writer_waits.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!has_room(lines)) return nullptr;
    header_->writer_waits.store(0, std::memory_order_relaxed);
  }
  return reinterpret_cast<Envelope*>(ring_ + at_ * kCacheLine);
}

void RingWriter::commit(Envelope& envelope, const std::byte* payload, size_t bytes) {
  const size_t lines = 1 + lines_of(bytes);
  const size_t first_line = at_ + 1 == lines_ ? 0 : at_ + 1;
  at_ += lines;
  if (at_ >= lines_) at_ -= lines_;
  reinterpret_cast<Envelope*>(ring_ + at_ * kCacheLine)->lines.store(0, std::memory_order_relaxed);
  if (bytes > 0) {
    const size_t before_end = std::min(bytes, (lines_ - first_line) * kCacheLine);
    copy_across(ring_ + first_line * kCacheLine, payload, before_end);
    copy_across(ring_, payload + before_end, bytes - before_end);
  }
  written_ += lines;
  envelope.lines.store(static_cast<uint32_t>(lines), std::memory_order_release);
}

RingReader::RingReader(std::byte* memory, size_t bytes)
    : header_(reinterpret_cast<RingHeader*>(memory)),
      ring_(memory + sizeof(RingHeader)),
      lines_((bytes - sizeof(RingHeader)) / kCacheLine) {}

void RingReader::copy_payload(std::byte* to, size_t bytes) const {
  if (bytes == 0) return;
  const size_t first_line = at_ + 1 == lines_ ? 0 : at_ + 1;
  const size_t before_end = std::min(bytes, (lines_ - first_line) * kCacheLine);
  copy_across(to, ring_ + first_line * kCacheLine, before_end);
  copy_across(to + before_end, ring_, bytes - before_end);
}

bool RingReader::pop() {
  const size_t lines = front()->lines.load(std::memory_order_relaxed);
  at_ += lines;
  if (at_ >= lines_) at_ -= lines_;
  read_ += lines;
  header_->read.store(read_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (header_->writer_waits.load(std::memory_order_relaxed) == 0) return false;
  header_->writer_waits.store(0, std::memory_order_relaxed);
  return true;
}

}  // namespace collective_ops::shm
