#include "communicator/status.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "communicator/failure_text.h"
#include "transport/shm/group_memory.h"

namespace collective_ops {
namespace {

Status damaged(const std::string& what) {
  return {ErrorCode::kInvalidArgument, fmt::format("the memory of a group cannot be read: {}", what)};
}

// Aligned as the shared memory was, so that its types can be laid over it.
struct Copy {
  explicit Copy(std::span<const std::byte> bytes)
      : data(static_cast<std::byte*>(::operator new(bytes.size(), kAlignment))) {
    std::memcpy(data.get(), bytes.data(), bytes.size());
  }
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> data;
};

// A line is overwritten by later calls: nothing where it is not that of the last call, or half written.
std::string call_of(const shm::GroupMemory& memory, int rank, uint64_t issued) {
  const shm::Line& line = memory.line(rank, issued);
  const shm::Signature signature{line.head.load(std::memory_order_relaxed), line.shape};
  if (signature.sequence() != static_cast<uint32_t>(issued)) return "";
  const bool known = static_cast<int>(signature.collective()) < kCollectiveCount &&
                     static_cast<int>(signature.type()) < kDataTypeCount &&
                     static_cast<int>(signature.op()) < kReduceOpCount;
  return known || signature.failed() ? describe(signature) : "";
}

Activity activity_of(const RankStatus& status, const shm::RankState& state) {
  if (state.left.load(std::memory_order_relaxed) != 0) return Activity::kLeft;
  if (status.pid == 0) return Activity::kAbsent;
  if (status.issued == status.finished) return Activity::kOutside;
  return status.waits_for >= 0 ? Activity::kWaiting : Activity::kBusy;
}

Result<RankStatus> read_rank(const shm::GroupMemory& memory, int rank) {
  const shm::RankState& state = memory.state(rank);
  RankStatus status;
  status.rank = rank;
  const bool world = memory.header().group_id.load(std::memory_order_relaxed) == 0;
  status.world_rank = world ? rank : memory.note(rank).world_rank.load(std::memory_order_relaxed);
  status.pid = state.pid.load(std::memory_order_relaxed);
  status.issued = state.issued.load(std::memory_order_relaxed);
  // Of a copy made while the rank went on, the later word may be ahead.
  status.finished = std::min(state.finished.load(std::memory_order_relaxed), status.issued);
  const int waits_for = state.waits_for.load(std::memory_order_relaxed);
  const int64_t since_ns = state.begun_ns.load(std::memory_order_relaxed);
  if (status.world_rank < 0 || status.world_rank >= shm::kMaxRanks)
    return damaged(fmt::format("rank {} is said to be rank {} of its job", rank, status.world_rank));
  if (status.pid < 0 || since_ns < 0 || waits_for < -1 || waits_for >= memory.world_size()) {
    return damaged(fmt::format("rank {} is said to be process {} and to wait for rank {} since {} ns", rank,
                               status.pid, waits_for, since_ns));
  }
  if (status.pid != 0 && status.issued > status.finished) status.waits_for = waits_for;
  status.activity = activity_of(status, state);
  if (status.activity == Activity::kWaiting) {
    status.since_ns = since_ns;
  } else {
    status.waits_for = -1;
  }
  if (status.issued > 0) status.call = call_of(memory, rank, status.issued);
  if (world && status.activity != Activity::kLeft) status.elsewhere = memory.read_note(rank);
  return status;
}

// The record may be half written, by a rank that died; the copy never changes.
Status failure_of(const shm::FailureRecord& record) {
  const uint32_t state = record.state.load(std::memory_order_relaxed);
  if (state == 0) return {};
  const bool complete = state == 2 && record.code > 0 && record.code < kErrorCodeCount;
  if (!complete) return {ErrorCode::kGroupBroken, "a rank broke the group and has not said why (yet)"};
  return {static_cast<ErrorCode>(record.code),
          std::string(record.text, ::strnlen(record.text, sizeof(record.text)))};
}

Status check_header(const shm::GroupHeader& header, size_t bytes) {
  if (header.layout_version != shm::kGroupLayoutVersion) {
    return damaged(
        fmt::format("it has layout {}, this build reads {}; use the collective-ops of the job's "
                    "own environment",
                    header.layout_version, shm::kGroupLayoutVersion));
  }
  if (header.world_size < 1 || header.world_size > shm::kMaxRanks) {
    return damaged(fmt::format("{} ranks are not possible", header.world_size));
  }
  const size_t needed = shm::GroupMemory::bytes_observed(static_cast<int>(header.world_size));
  if (bytes < needed) {
    return damaged(fmt::format("{} bytes, but {} ranks need {}", bytes, header.world_size, needed));
  }
  return {};
}

}  // namespace

std::string_view name_of(Activity activity) {
  constexpr std::string_view kNames[] = {"absent", "outside", "waiting", "busy", "left"};
  return kNames[static_cast<size_t>(activity)];
}

size_t status_bytes() { return shm::GroupMemory::bytes_observed(shm::kMaxRanks); }

Result<GroupStatus> read_status(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(shm::GroupHeader)) {
    return damaged(fmt::format("{} bytes hold no header of {}", bytes.size(), sizeof(shm::GroupHeader)));
  }
  const Copy copy(bytes);
  const auto& header = *reinterpret_cast<const shm::GroupHeader*>(copy.data.get());
  const uint64_t magic = header.magic.load(std::memory_order_acquire);
  if (magic == 0) return GroupStatus{};
  if (magic != shm::kGroupMagic) return damaged("it does not begin with the mark of a group");
  if (Status status = check_header(header, bytes.size()); !status.ok()) return status;

  const shm::GroupMemory memory(copy.data.get(), static_cast<int>(header.world_size));
  GroupStatus group;
  group.job.assign(header.job, ::strnlen(header.job, sizeof(header.job)));
  group.id = header.group_id.load(std::memory_order_relaxed);
  group.name.assign(header.name, ::strnlen(header.name, sizeof(header.name)));
  group.failure = failure_of(header.failure);
  for (int rank = 0; rank < memory.world_size(); ++rank) {
    auto status = read_rank(memory, rank);
    if (!status.ok()) return status.status();
    group.ranks.push_back(std::move(*status));
  }
  return group;
}

}  // namespace collective_ops
