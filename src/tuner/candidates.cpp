#include "tuner/candidates.h"

#include "algorithms/algorithms.h"
#include "tuner/choose.h"

namespace collective_ops {
namespace {

std::string path_of(const Program& program, bool shared, const StagingMemory& memory) {
  if (program.scratch_bytes <= memory.inline_bytes && program.eager) return "inline";
  if (program.reads_peer_input || program.reads_peer_output || program.writes_peer_output) {
    return shared ? "direct" : "read";
  }
  return "staged";
}

bool is_possible(const Plan& plan, const Program& program, bool shared, const StagingMemory& memory) {
  if (program.scratch_bytes > (program.eager ? memory.eager_bytes : memory.scratch_bytes)) return false;
  // Nobody writes another's private memory; what is made for reading it is not run where it can be reached.
  return shared ? plan.name != "read" : !program.writes_peer_output;
}

}  // namespace

Result<std::vector<Candidate>> candidates_of(const CandidateCall& call, const Topology& topology,
                                             const StagingMemory& memory) {
  std::vector<Candidate> candidates;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != call.collective) continue;
    const Plan* plan = find_plan(algorithm.collective, algorithm.name);
    const Binding binding{.rank = 0,
                          .world_size = topology.ranks,
                          .element_size = call.element_size,
                          .count = call.count,
                          .chunk_bytes = chunk_bytes(*plan, topology.ranks, memory.scratch_bytes)};
    auto program = lower(*plan, binding);
    if (!program.ok()) return program.status();
    if (!is_possible(*plan, *program, call.shared, memory)) continue;
    const std::string path = path_of(*program, call.shared, memory);
    const auto priced = cost(*plan, binding, topology, path == "read");
    if (!priced.ok()) return priced.status();
    candidates.push_back(
        {std::string(algorithm.name), path, !reduces(call.collective) || plan->rank_ordered, priced.value()});
  }
  return candidates;
}

}  // namespace collective_ops
