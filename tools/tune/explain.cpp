#include "explain.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "algorithms/algorithms.h"
#include "communicator/program_cache.h"
#include "perf/options.h"
#include "transport/shm/group_memory.h"

namespace collective_ops::tune {
namespace {

Call call_of(const Question& question, int ranks) {
  static std::array<std::byte, 2> somewhere;  // never looked at: only that there are two buffers counts
  const size_t elements = question.bytes / size_of(question.type);
  const size_t parts = perf::has_parts(question.collective) ? static_cast<size_t>(ranks) : 1;
  if (question.collective == Collective::kBarrier) return {};
  return {question.collective, &somewhere[0], &somewhere[1], elements / parts, question.type};
}

Result<std::string> choice_of(const Call& call, bool shared, int ranks) {
  auto forced = forced_by_environment();
  if (!forced.ok()) return forced.status();
  ProgramCache cache(0, ranks, 0, forced.value());
  const auto prepared = cache.prepare(call);
  if (!prepared.ok()) return prepared.status();
  const PreparedCall& plans = *prepared.value();
  const auto& names = algorithm_names();
  if (plans.eager && !(plans.direct && shared)) return names[plans.eager->algorithm];
  if (plans.push && shared) return names[plans.push->algorithm];
  if (plans.direct && shared) return names[plans.direct->algorithm];
  if (plans.read) return names[plans.read->algorithm];
  if (!plans.staged) return Status(ErrorCode::kInternal, "a call without a plan");
  return names[plans.staged->algorithm];
}

std::string path_of(const Program& program, bool shared) {
  if (program.scratch_bytes <= shm::kInlineBytes && program.eager) return "inline";
  if (program.reads_peer_input || program.reads_peer_output || program.writes_peer_output) {
    return shared ? "direct" : "read";
  }
  return "staged";
}

// Whether a communicator could run the plan for this call.
bool is_possible(const Program& program, bool shared) {
  if (program.scratch_bytes > (program.eager ? shm::kEagerBytes : shm::kScratchBytes)) return false;
  return shared || !program.writes_peer_output;
}

}  // namespace

Result<std::vector<Candidate>> explain(const Question& question, const Topology& topology) {
  const int ranks = topology.ranks;
  const Call call = call_of(question, ranks);
  const auto chosen = choice_of(call, question.shared, ranks);
  if (!chosen.ok()) return chosen.status();
  std::vector<Candidate> candidates;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != question.collective) continue;
    const Plan* plan = find_plan(algorithm.collective, algorithm.name);
    const Binding binding{.rank = 0,
                          .world_size = ranks,
                          .element_size = size_of(call.type),
                          .count = call.count,
                          .chunk_bytes = chunk_bytes(*plan, ranks, shm::kScratchBytes)};
    const auto program = lower(*plan, binding);
    if (!program.ok()) return program.status();
    if (!is_possible(program.value(), question.shared)) continue;
    const auto priced = cost(*plan, binding, topology);
    if (!priced.ok()) return priced.status();
    const std::string name(algorithm.name);
    candidates.push_back(
        {name, path_of(program.value(), question.shared), priced.value(), name == chosen.value()});
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.cost.total_ns() < b.cost.total_ns();
  });
  return candidates;
}

}  // namespace collective_ops::tune
