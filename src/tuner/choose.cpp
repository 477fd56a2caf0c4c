#include "tuner/choose.h"

#include <algorithm>
#include <array>

#include "algorithms/algorithms.h"
#include "plan/program.h"

namespace collective_ops {
namespace {

// Up to how many bytes one exchange of everything beats two synchronisations. The work of one_shot
// grows with n^2, so its range shrinks with the number of ranks.
struct EagerLimit {
  int ranks;  // up to this many
  size_t bytes;
};
constexpr std::array kAllReduceLimits = {EagerLimit{2, 32 << 10}, EagerLimit{4, 16 << 10},
                                         EagerLimit{8, 8 << 10}, EagerLimit{1 << 20, 2 << 10}};

// Sizes for which reading the peers' private memory, a system call for each piece of it, was measured to beat
// passing everything through staging memory. With more ranks than cores it seldom does: the kernel copies
// page by page, at half the speed. In all_to_all every byte is moved once only this way.
struct ReadRange {
  Collective collective;
  int ranks;  // up to this many
  size_t from, to;
};
constexpr size_t kAnySize = ~size_t{0};
constexpr std::array kReadRanges = {
    ReadRange{Collective::kAllGather, 2, 64 << 10, kAnySize},
    ReadRange{Collective::kReduceScatter, 2, 64 << 10, 1 << 20},
    ReadRange{Collective::kReduceScatter, 8, 32 << 10, 512 << 10},
    ReadRange{Collective::kBroadcast, 2, 128 << 10, 1 << 20},
    ReadRange{Collective::kReduce, 2, 128 << 10, 16 << 20},
    ReadRange{Collective::kAllToAll, 1 << 20, 512 << 10, kAnySize},
    ReadRange{Collective::kGather, 1 << 20, 512 << 10, kAnySize},
    ReadRange{Collective::kScatter, 1 << 20, 512 << 10, kAnySize},
};

bool reads(Collective collective, size_t bytes, int world_size) {
  return std::any_of(kReadRanges.begin(), kReadRanges.end(), [&](const ReadRange& range) {
    return range.collective == collective && world_size <= range.ranks && bytes >= range.from &&
           bytes <= range.to;
  });
}

// Staging works well while what ranks write is still in the second-level cache (mostly 1 or 2 MiB) when it is
// read, and the caller's memory of a chunk when it is overwritten. Several ranks may share a core: half of
// them are counted, as on a machine of two. Below the smallest chunk, synchronising costs more than that
// saves.
constexpr size_t kStagingInCache = 512 << 10;
constexpr size_t kSmallestChunk = 4 << 10;

size_t eager_limit(Collective collective, int world_size) {
  // In the others every byte is moved once whatever the plan: only the eager slot bounds them.
  if (collective != Collective::kAllReduce) return size_t{32} << 10;
  return std::find_if(kAllReduceLimits.begin(), kAllReduceLimits.end(),
                      [&](const EagerLimit& limit) { return world_size <= limit.ranks; })
      ->bytes;
}

// From here on going direct beats copying everything twice, though it takes a second synchronisation; that
// one is dear where ranks wait for each other's core.
size_t direct_from(Collective collective, int world_size) {
  if (world_size <= 2) return 512;
  return collective == Collective::kReduceScatter ? 1 << 10 : 4 << 10;
}

// From this many bytes on it pays that each byte is read from memory once, and that all cores take part where the
// root's alone would.
size_t push_from(Collective collective, int world_size) {
  switch (collective) {
    case Collective::kBroadcast:
      return 64 << 10;
    case Collective::kGather:
      return world_size > 2 ? 256 << 10 : kAnySize;
    case Collective::kAllGather:
      return world_size > 2 ? 2 << 20 : kAnySize;
    default:
      return kAnySize;
  }
}

std::string_view staged_plan(Collective collective) {
  return collective == Collective::kAllReduce ? "two_shot" : "staged";
}

// Where there is no plan for the case, the direct one writes nothing into peers' memory, so it serves.
std::string_view read_plan(Collective collective) {
  return find_plan(collective, "read") != nullptr ? "read" : "direct";
}

// A bound below the staging memory there is: it has to hold for every rank, and slices are rounded up.
constexpr size_t kSurelyStaged = size_t{1} << 20;

bool is_possible(Collective collective, const std::string& name, size_t bytes, int world_size, bool strict) {
  const Plan* plan = name.empty() ? nullptr : find_plan(collective, name);
  if (plan == nullptr || (strict && reduces(collective) && !plan->rank_ordered)) return false;
  const Binding binding{.world_size = world_size,
                        .element_size = 1,
                        .count = bytes,
                        .chunk_bytes = chunk_bytes(*plan, world_size, kSurelyStaged)};
  const auto program = lower(*plan, binding);
  return program.ok() && program->scratch_bytes <= kSurelyStaged;
}

}  // namespace

PlanNames choose(Collective collective, size_t bytes, int world_size, const Forced& forced) {
  if (collective == Collective::kBarrier) return {.eager = "arrival"};
  if (find_plan(collective, forced.algorithm) != nullptr) {
    const std::string_view name = forced.algorithm;
    if (name == "one_shot") return {.eager = name, .staged = staged_plan(collective)};
    if (name == "read") return {.read = name, .staged = staged_plan(collective)};
    if (name == "direct") return {.direct = name, .staged = staged_plan(collective)};
    if (name == "push") return {.push = name, .staged = staged_plan(collective)};
    return {.staged = name};
  }
  const std::string& preferred = forced.preferred[static_cast<size_t>(collective)];
  if (forced.path == PathChoice::kAuto &&
      is_possible(collective, preferred, bytes, world_size, forced.strict)) {
    return {.staged = preferred};
  }
  PlanNames names;
  names.staged = staged_plan(collective);
  const bool automatic = forced.path == PathChoice::kAuto;
  if ((automatic && bytes >= direct_from(collective, world_size)) || forced.path == PathChoice::kDirect) {
    names.direct = "direct";
    const size_t all = collective == Collective::kBroadcast ? bytes : bytes * static_cast<size_t>(world_size);
    if (all >= push_from(collective, world_size)) names.push = "push";
  }
  if ((automatic && reads(collective, bytes, world_size)) || forced.path == PathChoice::kRead) {
    names.read = read_plan(collective);
  }
  if ((automatic || forced.path == PathChoice::kStaged) && bytes <= eager_limit(collective, world_size))
    names.eager = "one_shot";
  return names;
}

size_t chunk_bytes(const Plan& plan, int world_size, size_t scratch_bytes) {
  size_t pieces = 0;
  for (const ScratchRegion& region : plan.scratch) {
    pieces += static_cast<size_t>(region.depth) * (region.per_rank ? static_cast<size_t>(world_size) : 1);
  }
  pieces = std::max<size_t>(pieces, 1);
  const size_t sharing = static_cast<size_t>(world_size + 1) / 2;
  const size_t cached = std::max(kStagingInCache / (pieces * sharing), kSmallestChunk);
  return std::max<size_t>(std::min(scratch_bytes / pieces, cached) / 64 * 64, 64);
}

}  // namespace collective_ops
