#include "transport/shm/group_memory.h"

#include <algorithm>
#include <cstring>

#include <sched.h>

#include "transport/shm/message_ring.h"

namespace collective_ops::shm {
namespace {

constexpr size_t kPage = 4096;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Offsets {
  size_t states, notes, lines, small, eager, scratch, channels, messages, end;
};

Offsets offsets_of(int world_size) {
  const size_t n = static_cast<size_t>(world_size);
  Offsets at{};
  at.states = round_up(sizeof(GroupHeader), kPage);
  at.notes = at.states + n * sizeof(RankState);
  at.lines = round_up(at.notes + n * sizeof(RankNote), kPage);
  at.small = at.lines + round_up(n * kLineDepth * sizeof(Line), kPage);
  at.eager = at.small + round_up(n * kLineDepth * kSmallStride, kPage);
  at.scratch = at.eager + round_up(n * kEagerDepth * kEagerStride, kPage);
  at.channels = at.scratch + n * kScratchBytes;
  at.messages = at.channels + n * n * GroupMemory::channel_bytes(world_size);
  at.end = at.messages + MessageMemory::bytes_needed(world_size);
  return at;
}

}  // namespace

size_t GroupMemory::channel_bytes(int world_size) {
  // All pairs together stay below 8 MiB up to 64 ranks; pages are only taken when used.
  return world_size <= 8 ? 128 * 1024 : world_size <= 16 ? 32 * 1024 : 8 * 1024;
}

size_t GroupMemory::bytes_needed(int world_size) { return offsets_of(world_size).end; }
size_t GroupMemory::bytes_observed(int world_size) { return offsets_of(world_size).small; }

GroupMemory::GroupMemory(std::byte* base, int world_size) : base_(base), world_size_(world_size) {
  const Offsets at = offsets_of(world_size);
  states_ = reinterpret_cast<RankState*>(base + at.states);
  notes_ = reinterpret_cast<RankNote*>(base + at.notes);
  lines_ = reinterpret_cast<Line*>(base + at.lines);
  small_ = base + at.small;
  eager_ = base + at.eager;
  scratch_ = base + at.scratch;
  channels_ = base + at.channels;
  messages_ = base + at.messages;
}

std::byte* GroupMemory::channel(int from, int to) const {
  return channels_ + (static_cast<size_t>(from) * world_size_ + to) * channel_bytes(world_size_);
}

MessageMemory GroupMemory::messages() const { return {messages_, world_size_}; }

void GroupMemory::introduce(int rank, int32_t pid, std::string_view job) const {
  state(rank).waits_for.store(-1, std::memory_order_relaxed);
  state(rank).pid.store(pid, std::memory_order_relaxed);
  if (rank != 0) return;
  header().layout_version = kGroupLayoutVersion;
  header().world_size = static_cast<uint32_t>(world_size_);
  job.copy(header().job, kJobBytes - 1);  // the rest is zero
  header().magic.store(kGroupMagic, std::memory_order_release);
}

void GroupMemory::name_group(uint32_t id, std::string_view name, std::span<const int> world_ranks) const {
  header().group_id.store(id, std::memory_order_relaxed);
  name.copy(header().name, kNameBytes - 1);
  for (int rank = 0; rank < world_size_; ++rank)
    note(rank).world_rank.store(world_ranks[static_cast<size_t>(rank)], std::memory_order_relaxed);
}

void GroupMemory::write_note(int rank, std::string_view text) const {
  RankNote& note = this->note(rank);
  uint64_t words[RankNote::kWords] = {};
  text.copy(reinterpret_cast<char*>(words), sizeof(words) - 1);
  const uint32_t version = note.version.load(std::memory_order_relaxed);
  note.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < RankNote::kWords; ++i) note.text[i].store(words[i], std::memory_order_relaxed);
  note.version.store(version + 2, std::memory_order_release);
}

std::string GroupMemory::read_note(int rank) const {
  const RankNote& note = this->note(rank);
  for (int i = 0; i < 100; ++i) {
    const uint32_t version = note.version.load(std::memory_order_acquire);
    uint64_t words[RankNote::kWords];
    for (size_t k = 0; k < RankNote::kWords; ++k) words[k] = note.text[k].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (version % 2 == 0 && note.version.load(std::memory_order_relaxed) == version) {
      const auto* text = reinterpret_cast<const char*>(words);
      return std::string(text, ::strnlen(text, sizeof(words)));
    }
    sched_yield();
  }
  return "";
}

Status GroupMemory::break_with(const Status& reason) const {
  FailureRecord& record = header().failure;
  uint32_t none = 0;
  if (!record.state.compare_exchange_strong(none, 1)) return failure();
  record.code = static_cast<uint32_t>(reason.code());
  const size_t length = std::min(reason.message().size(), sizeof(record.text) - 1);
  std::memcpy(record.text, reason.message().data(), length);
  record.text[length] = '\0';
  record.state.store(2, std::memory_order_release);
  return reason;
}

Status GroupMemory::failure() const {
  const FailureRecord& record = header().failure;
  // A writer that dies between states 1 and 2 must not hold its peers for ever.
  for (int i = 0; i < 10'000; ++i) {
    const uint32_t state = record.state.load(std::memory_order_acquire);
    if (state == 0) return {};
    if (state == 2) return Status(static_cast<ErrorCode>(record.code), record.text);
    sched_yield();
  }
  return Status(ErrorCode::kGroupBroken, "the group was broken by a rank that died while it said why");
}

}  // namespace collective_ops::shm
