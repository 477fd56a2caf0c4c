#include <algorithm>

#include <fmt/format.h>

#include "algorithms/algorithms.h"
#include "explain.h"
#include "transport/shm/group_memory.h"
#include "tuner/choose.h"

namespace collective_ops::tune {
namespace {

// As groups over several hosts do: up to so many bytes one rank of each host speaks for all of its host.
constexpr size_t kShortBytes = 64 << 10;

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

// The parts inside a host before and after the one between hosts.
std::vector<Collective> parts_inside(Collective collective, size_t bytes) {
  const bool is_short = bytes <= kShortBytes;
  switch (collective) {
    case Collective::kAllReduce:
      return is_short ? std::vector{Collective::kReduce, Collective::kBroadcast}
                      : std::vector{Collective::kReduceScatter, Collective::kAllGather};
    case Collective::kReduce:
      return {Collective::kReduce};
    case Collective::kBroadcast:
      return {Collective::kBroadcast};
    default:
      return {};
  }
}

void add(Cost& sum, const Cost& cost, int times) {
  sum.copied_bytes += cost.copied_bytes * static_cast<uint64_t>(times);
  sum.reduced_bytes += cost.reduced_bytes * static_cast<uint64_t>(times);
  sum.memory_bytes += cost.memory_bytes * static_cast<uint64_t>(times);
  sum.rounds += cost.rounds;
  sum.core_ns += cost.core_ns;
  sum.memory_ns += cost.memory_ns;
  sum.link_ns += cost.link_ns;
  sum.latency_ns += cost.latency_ns;
}

// What the plans cost that communicators take for the parts inside a host; they run on all hosts at once.
Result<Cost> cost_inside(const Question& question, const Topology& topology) {
  Topology host = topology;
  host.hosts = 1;
  host.ranks = topology.ranks_of_host();
  Cost sum;
  if (host.ranks == 1) return sum;
  for (const Collective part : parts_inside(question.collective, question.bytes)) {
    auto explained = explain({part, question.type, question.bytes, question.shared}, host);
    if (!explained.ok()) return explained.status();
    for (const Explained& one : *explained) {
      if (one.chosen) add(sum, one.candidate.cost, topology.hosts);
    }
  }
  return sum;
}

// What moves blocks alone has no plan between hosts: each rank sends to all others at once, as these do.
std::string_view name_taken(const Question& question, const Topology& topology) {
  if (!parts_inside(question.collective, question.bytes).empty()) {
    return choose_between_hosts(question.collective, question.bytes, topology.hosts);
  }
  switch (question.collective) {
    case Collective::kGather:
    case Collective::kScatter:
      return "linear";
    case Collective::kAllToAll:
      return "pairwise";
    default:
      return "ring";
  }
}

}  // namespace

Result<std::vector<Explained>> explain_hosts(const Question& question, const Topology& topology) {
  if (topology.hosts < 1 || topology.ranks % topology.hosts != 0) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("{} ranks on {} hosts: as many on each are expected", topology.ranks, topology.hosts));
  }
  auto forced = forced_by_environment();
  if (!forced.ok()) return forced.status();
  auto inside = cost_inside(question, topology);
  if (!inside.ok()) return inside.status();
  Topology between = topology;
  if (!parts_inside(question.collective, question.bytes).empty()) between.ranks = topology.hosts;
  const size_t element = size_of(question.type);
  const size_t divisor = has_parts(question.collective) ? static_cast<size_t>(topology.ranks) : 1;

  std::vector<Explained> explained;
  for (const Algorithm& algorithm : algorithms()) {
    const Plan& plan = *find_plan(algorithm.collective, algorithm.name);
    if (algorithm.collective != question.collective || !is_of_messages(plan)) continue;
    const Binding binding{.world_size = between.ranks,
                          .element_size = element,
                          .count = question.bytes / element / divisor,
                          .chunk_bytes = chunk_bytes(plan, between.ranks, shm::kScratchBytes)};
    auto priced = cost(plan, binding, between);
    if (!priced.ok()) return priced.status();
    add(*priced, *inside, 1);
    explained.push_back({{plan.name, "messages", plan.rank_ordered, *priced}});
  }
  std::ranges::stable_sort(explained, {}, [](const Explained& one) { return one.candidate.cost.total_ns(); });
  for (const std::string_view name :
       {preferred_between_hosts(question.collective, *forced), name_taken(question, topology)}) {
    const auto taken =
        std::ranges::find_if(explained, [&](const Explained& one) { return one.candidate.name == name; });
    if (taken == explained.end()) continue;
    taken->chosen = true;
    break;
  }
  return explained;
}

}  // namespace collective_ops::tune
