#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "algorithms/algorithms.h"
#include "explain.h"
#include "transport/shm/group_memory.h"
#include "tuner/choose.h"

namespace collective_ops::tune {
namespace {

// As groups over several hosts do: up to so many bytes one rank of each host speaks for all of its host.
constexpr size_t kShortBytes = 64 << 10;
constexpr double kPieceBytes = 1 << 20;

// The parts inside a host before and after the one between hosts.
std::vector<Collective> parts_inside(Collective collective, size_t bytes) {
  const bool is_short = bytes <= kShortBytes;
  switch (collective) {
    case Collective::kAllReduce:
      return is_short ? std::vector{Collective::kReduce, Collective::kBroadcast}
                      : std::vector{Collective::kReduceScatter, Collective::kAllGather};
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kReduce:
      return {collective};
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

// Between the hosts each rank sends to all others in its place at once, `sends` times, and meanwhile the
// ranks of a host do what they do inside it, but for the first piece, which has to be ready, and the last.
// `work`: of a plan between hosts that moves as many bytes; those inside are counted in it, times are not.
Cost cost_at_once(const Question& question, const Topology& topology, const Cost& work, const Cost& inside,
                  int sends) {
  const bool in_pieces = question.collective == Collective::kAllReduce;
  const double others = topology.hosts - 1, columns = topology.ranks_of_host();
  const double pieces =
      in_pieces ? std::max(1.0, std::ceil(static_cast<double>(question.bytes) / (kPieceBytes * columns))) : 1;
  Cost cost = work;
  cost.rounds = inside.rounds + static_cast<uint32_t>(sends * others);
  const double messages =
      2 * sends * others * pieces * topology.link.message_ns * std::max(1.0, columns / topology.cores);
  const double busy = work.core_ns + work.memory_ns + inside.total_ns() + messages;
  cost.link_ns =
      sends * others / topology.hosts * static_cast<double>(question.bytes) / topology.link.bytes_per_ns;
  const double hidden = in_pieces ? std::min(busy, cost.link_ns) * (pieces - 1) / pieces : 0;
  cost.memory_ns = 0;
  cost.core_ns = busy - hidden;
  cost.latency_ns = sends * topology.link.latency_ns + cost.link_ns;
  return cost;
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
  // Of gather, scatter and all_to_all every pair of ranks exchanges its own blocks.
  Topology between = topology;
  if (!parts_inside(question.collective, question.bytes).empty()) between.ranks = topology.hosts;
  const size_t element = size_of(question.type);
  const size_t divisor = has_parts(question.collective) ? static_cast<size_t>(between.ranks) : 1;

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
  const std::string_view taken =
      way_between_hosts(question.collective, question.bytes, topology.hosts, *forced);
  const auto is_taken = [&](const Explained& one) { return one.candidate.name == taken; };
  if (std::ranges::none_of(explained, is_taken)) {
    // Of ordered sums each rank's own input travels.
    const bool ordered = forced->strict && reduces(question.collective);
    const int sends =
        (ordered ? topology.ranks_of_host() : 1) + (question.collective == Collective::kAllReduce);
    const auto cheapest = std::ranges::min_element(
        explained, {}, [](const Explained& one) { return one.candidate.cost.copied_bytes; });
    Cost work = cheapest->candidate.cost;
    work.core_ns = std::max(0.0, work.core_ns - inside->core_ns);
    work.memory_ns = std::max(0.0, work.memory_ns - inside->memory_ns);
    explained.push_back(
        {{std::string(taken), "messages", true, cost_at_once(question, topology, work, *inside, sends)}});
  }
  std::ranges::stable_sort(explained, {}, [](const Explained& one) { return one.candidate.cost.total_ns(); });
  std::ranges::find_if(explained, is_taken)->chosen = true;
  return explained;
}

}  // namespace collective_ops::tune
