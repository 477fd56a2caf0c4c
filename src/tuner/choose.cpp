#include "tuner/choose.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "algorithms/algorithms.h"
#include "base/environment.h"

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

// From here on the two system calls a peer costs are cheaper than passing everything through staging memory.
constexpr size_t kReadFrom = 512 << 10;

size_t eager_limit(Collective collective, int world_size) {
  // In the others every byte is moved once whatever the plan: only the eager slot bounds them.
  if (collective != Collective::kAllReduce) return size_t{32} << 10;
  return std::find_if(kAllReduceLimits.begin(), kAllReduceLimits.end(),
                      [&](const EagerLimit& limit) { return world_size <= limit.ranks; })
      ->bytes;
}

std::string_view staged_plan(Collective collective) {
  return collective == Collective::kAllReduce ? "two_shot" : "staged";
}

// Where there is no plan for the case, the direct one writes nothing into peers' memory, so it serves.
std::string_view read_plan(Collective collective) {
  return find_plan(collective, "read") != nullptr ? "read" : "direct";
}

}  // namespace

Result<Forced> forced_by_environment() {
  Forced forced;
  const std::string path = environment_text("COLLECTIVE_OPS_PATH");
  if (path == "staged") {
    forced.path = PathChoice::kStaged;
  } else if (path == "direct") {
    forced.path = PathChoice::kDirect;
  } else if (path == "read") {
    forced.path = PathChoice::kRead;
  } else if (path != "auto") {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("COLLECTIVE_OPS_PATH=\"{}\": expected auto, staged, direct or read", path));
  }
  const std::string algorithm = environment_text("COLLECTIVE_OPS_ALGORITHM");
  if (algorithm == "auto") return forced;
  std::string known;
  for (const Algorithm& one : algorithms()) {
    if (one.name == algorithm) forced.algorithm = algorithm;
    if (known.find(one.name) == std::string::npos) known += fmt::format(", {}", one.name);
  }
  if (forced.algorithm.empty()) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("COLLECTIVE_OPS_ALGORITHM=\"{}\": expected auto{}", algorithm, known));
  }
  return forced;
}

PlanNames choose(Collective collective, size_t bytes, int world_size, const Forced& forced) {
  if (collective == Collective::kBarrier) return {.eager = "arrival"};
  if (find_plan(collective, forced.algorithm) != nullptr) {
    const std::string_view name = forced.algorithm;
    if (name == "one_shot") return {.eager = name, .staged = staged_plan(collective)};
    if (name == "read") return {.read = name, .staged = staged_plan(collective)};
    if (name == "direct") return {.direct = name, .staged = staged_plan(collective)};
    return {.staged = name};
  }
  PlanNames names;
  names.staged = staged_plan(collective);
  const bool automatic = forced.path == PathChoice::kAuto;
  if (automatic || forced.path == PathChoice::kDirect) names.direct = "direct";
  if ((automatic && bytes >= kReadFrom) || forced.path == PathChoice::kRead) {
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
  const size_t chunk = scratch_bytes / std::max<size_t>(pieces, 1);
  return std::clamp<size_t>(chunk / 64 * 64, 64, size_t{256} << 10);
}

}  // namespace collective_ops
