#include "tuner/choose.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "algorithms/algorithms.h"
#include "plan/program.h"
#include "tuner/candidates.h"

namespace collective_ops {
namespace {

// Staging works well while what ranks write is still in the second-level cache (mostly 1 or 2 MiB) when it is
// read, and the caller's memory of a chunk when it is overwritten. Several ranks may share a core: half of
// them are counted, as on a machine of two. Below the smallest chunk, synchronising costs more than that
// saves: on shared cores each chunk is a turn of all ranks.
constexpr size_t kStagingInCache = 512 << 10;
constexpr size_t kSmallestChunk = 64 << 10;

std::string_view staged_plan(Collective collective) {
  return collective == Collective::kAllReduce ? "two_shot" : "staged";
}

// Where there is no plan for the case, there is one that writes nothing into peers' memory, so it serves.
std::string_view read_plan(Collective collective) {
  if (find_plan(collective, "read") != nullptr) return "read";
  return collective == Collective::kReduce ? "pull" : "direct";
}

// Bounds below the memory there is: they have to hold for every rank, and slices are rounded up.
constexpr StagingMemory kSurelyThere{.inline_bytes = 0, .eager_bytes = 64 << 10, .scratch_bytes = 1 << 20};

bool is_possible(const ChosenCall& call, std::string_view name, bool strict) {
  const Plan* plan = name.empty() ? nullptr : find_plan(call.collective, name);
  if (plan == nullptr || (strict && reduces(call.collective) && !plan->rank_ordered)) return false;
  const Binding binding{.world_size = call.world_size,
                        .element_size = 1,
                        .count = call.bytes,
                        .chunk_bytes = chunk_bytes(*plan, call.world_size, kSurelyThere.scratch_bytes)};
  const auto program = lower(*plan, binding);
  return program.ok() && program->scratch_bytes <= kSurelyThere.scratch_bytes;
}

PlanNames forced_names(Collective collective, std::string_view name) {
  if (name == "one_shot") return {.eager = name, .staged = staged_plan(collective)};
  if (name == "read") return {.read = name, .staged = staged_plan(collective)};
  if (name == "direct" || name == "pull") return {.direct = name, .staged = staged_plan(collective)};
  if (name == "push") return {.push = name, .staged = staged_plan(collective)};
  return {.staged = name};
}

struct Pair {
  std::string_view shared;
  std::string_view unshared;
};

// The names of the plans themselves, which live as long as the process.
std::string_view own_name(Collective collective, std::string_view name) {
  const Plan* plan = find_plan(collective, name);
  return plan == nullptr ? std::string_view() : std::string_view(plan->name);
}

Pair pair_of_table(const ChosenCall& call, const Forced& forced) {
  const uint64_t whole =
      has_parts(call.collective) ? call.bytes * static_cast<uint64_t>(call.world_size) : call.bytes;
  const TableRow* row = nullptr;
  if (forced.table != nullptr) {
    row = forced.table->find(call.collective, call.element_size, call.world_size, whole);
  }
  if (row == nullptr) row = builtin_table().find(call.collective, call.element_size, call.world_size, whole);
  if (row == nullptr) return {"direct", staged_plan(call.collective)};
  return {row->shared, row->unshared};
}

// What the plug-in makes of it, for one kind of memory; `name` where it has nothing to say.
std::string_view ask(const Plugin& plugin, const ChosenCall& call, bool shared, std::string_view name) {
  const auto n = static_cast<size_t>(call.world_size);
  auto found = candidates_of({call.collective, call.bytes / call.element_size, call.element_size, shared},
                             measured_defaults(call.world_size, kCoresOfDefaults), kSurelyThere);
  if (!found.ok() || found->empty()) return name;
  std::vector<collective_ops_tuner_candidate> list;
  double least = found->front().cost.total_ns();
  for (const Candidate& one : *found) {
    list.push_back({one.name.c_str(), one.path.c_str(), one.cost.total_ns(), one.ordered ? 1 : 0});
    least = std::min(least, one.cost.total_ns());
  }
  const auto is_taken = [&](const Candidate& one) {
    return one.name == name || (name == "read" && one.path == name);
  };
  for (size_t i = 0; i < list.size(); ++i) {
    if (is_taken((*found)[i])) list[i].cost_ns = 0.99 * least;
  }
  const std::string collective(name_of(call.collective));
  const collective_ops_tuner_call asked{collective.c_str(),
                                        has_parts(call.collective) ? call.bytes * n : call.bytes,
                                        call.element_size, call.world_size, shared ? 1 : 0};
  if (!plugin.tune(asked, list.data(), static_cast<int>(list.size()))) return name;
  const auto best = std::min_element(list.begin(), list.end(),
                                     [](const auto& a, const auto& b) { return a.cost_ns < b.cost_ns; });
  const Candidate& one = (*found)[static_cast<size_t>(best - list.begin())];
  return one.path == "read" ? std::string_view("read") : own_name(call.collective, one.name);
}

PlanNames names_of(const ChosenCall& call, Pair pair, bool strict) {
  PlanNames names{.staged = staged_plan(call.collective)};
  if (pair.unshared == "one_shot" || pair.shared == "one_shot") names.eager = "one_shot";
  // Where not all memory that a push writes to can be reached, what the direct plan reads may be.
  if (pair.shared == "push") names.push = "push";
  if (is_direct(pair.shared)) names.direct = pair.shared == "pull" ? "pull" : "direct";
  if (pair.unshared == "read") names.read = read_plan(call.collective);
  for (const std::string_view name : {pair.unshared, pair.shared}) {
    const bool staged = name != "one_shot" && name != "read" && !is_direct(name);
    if (!staged || !is_possible(call, name, strict)) continue;
    names.staged = own_name(call.collective, name);
    break;
  }
  return names;
}

}  // namespace

PlanNames choose(const ChosenCall& call, const Forced& forced) {
  const Collective collective = call.collective;
  if (collective == Collective::kBarrier) return {.eager = "arrival"};
  if (const std::string_view name = own_name(collective, forced.algorithm); !name.empty()) {
    return forced_names(collective, name);
  }
  const std::string& preferred = forced.preferred[static_cast<size_t>(collective)];
  if (forced.path == PathChoice::kAuto && is_possible(call, preferred, forced.strict)) {
    return {.staged = own_name(collective, preferred)};
  }
  Pair pair = pair_of_table(call, forced);
  switch (forced.path) {
    case PathChoice::kStaged:
      return pair.unshared == "one_shot" ? forced_names(collective, "one_shot")
                                         : PlanNames{.staged = staged_plan(collective)};
    case PathChoice::kDirect:
      return names_of(call, {is_direct(pair.shared) ? pair.shared : "direct", staged_plan(collective)},
                      forced.strict);
    case PathChoice::kRead:
      return {.read = read_plan(collective), .staged = staged_plan(collective)};
    case PathChoice::kAuto:
      break;
  }
  if (forced.plugin != nullptr) {
    pair = {ask(*forced.plugin, call, true, pair.shared), ask(*forced.plugin, call, false, pair.unshared)};
  }
  return names_of(call, pair, forced.strict);
}

bool is_of_messages(const Plan& plan) {
  bool sends = false;
  for (const Loop& loop : plan.loops) {
    for (const Statement& one : loop.body) {
      if (one.action == Action::kSignal || one.action == Action::kWait) return false;
      sends |= one.action == Action::kSend;
    }
  }
  return sends;
}

std::string_view way_between_hosts(Collective collective, size_t bytes, int hosts, const Forced& forced) {
  // Up to so many bytes the number of messages one after the other decides, above that their length.
  constexpr size_t kShort = 64 << 10;
  // More hosts are better served by fewer messages.
  constexpr int kMostHostsInPieces = 16;
  if (collective == Collective::kBarrier) return "recursive_doubling";
  if (collective == Collective::kGather || collective == Collective::kScatter) return "linear";
  if (has_parts(collective) || (forced.strict && reduces(collective))) return "pairwise";
  const std::string& named =
      forced.algorithm.empty() ? forced.preferred[static_cast<size_t>(collective)] : forced.algorithm;
  const Plan* plan = named.empty() ? nullptr : find_plan(collective, named);
  if (plan != nullptr && is_of_messages(*plan)) return plan->name;
  const bool is_short = bytes <= kShort;
  if (collective != Collective::kAllReduce) return is_short || hosts == 2 ? "tree" : "nhr";
  if (is_short) return "recursive_doubling";
  if (hosts <= kMostHostsInPieces) return kPieces;
  return std::has_single_bit(static_cast<unsigned>(hosts)) ? "halving_doubling" : "nhr";
}

bool has_parts(Collective collective) {
  return collective != Collective::kAllReduce && collective != Collective::kBroadcast &&
         collective != Collective::kReduce && collective != Collective::kBarrier;
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
