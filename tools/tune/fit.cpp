#include "fit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "algorithms/algorithms.h"
#include "perf/options.h"
#include "transport/shm/group_memory.h"
#include "tuner/choose.h"

namespace collective_ops::tune {
namespace {

// How far a number may move: what a few noisy calls say of it is not believed without bounds.
constexpr double kFarthest = 4;
constexpr double kInertia = 0.01;

// A call whose programs are lowered once, to be played with many topologies.
struct Prepared {
  const Observation* seen = nullptr;
  const Plan* plan = nullptr;
  Binding binding;
  std::vector<Program> programs;

  double predicted_us(Topology topology) const {
    topology.ranks = seen->ranks;
    return play({plan, binding, programs, seen->path == "read"}, topology).total_ns / 1e3;
  }
};

Result<Prepared> prepare(const Observation& seen) {
  Prepared call{.seen = &seen, .plan = find_plan(seen.collective, seen.algorithm)};
  if (call.plan == nullptr || seen.us <= 0) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("a fit to {} by {} in {} us: there is no such plan, or no such time",
                              name_of(seen.collective), seen.algorithm, seen.us));
  }
  const size_t parts = perf::has_parts(seen.collective) ? static_cast<size_t>(seen.ranks) : 1;
  call.binding = {.world_size = seen.ranks,
                  .element_size = size_of(seen.type),
                  .count = seen.bytes / size_of(seen.type) / parts,
                  .chunk_bytes = chunk_bytes(*call.plan, seen.ranks, shm::kScratchBytes)};
  Binding binding = call.binding;
  for (binding.rank = 0; binding.rank < seen.ranks; ++binding.rank) {
    auto program = lower(*call.plan, binding);
    if (!program.ok()) return program.status();
    call.programs.push_back(std::move(*program));
  }
  return call;
}

// The mean distance of the logarithms, and a little of how far the numbers have moved: of several that
// explain the same times, the ones nearest to where they were are taken.
double distance(const std::vector<Prepared>& calls, const Topology& topology, const Topology& start) {
  double sum = 0, moved = 0;
  for (const Prepared& one : calls) sum += std::abs(std::log(one.predicted_us(topology) / one.seen->us));
  for (const TopologyNumber& number : topology_numbers()) {
    moved += std::abs(std::log(topology.*number.value / start.*number.value));
  }
  return sum / static_cast<double>(calls.size()) + kInertia * moved;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

Result<Fitted> fit(std::span<const Observation> observations, const Topology& start, int rounds) {
  std::vector<Prepared> calls;
  for (const Observation& one : observations) {
    auto prepared = prepare(one);
    if (!prepared.ok()) return prepared.status();
    calls.push_back(std::move(*prepared));
  }
  Fitted fitted{.topology = start};
  double best = distance(calls, start, start);
  double step = 1.6;
  for (int round = 0; round < rounds; ++round) {
    bool moved = false;
    for (const TopologyNumber& number : topology_numbers()) {
      if (number.value == &Topology::memory_bytes_per_ns) continue;  // measured by itself
      for (const double factor : {step, 1 / step}) {
        Topology changed = fitted.topology;
        changed.*number.value *= factor;
        const double moved_by = changed.*number.value / start.*number.value;
        if (moved_by > kFarthest || moved_by < 1 / kFarthest) continue;
        const double reached = distance(calls, changed, start);
        if (reached >= best) continue;
        best = reached;
        fitted.topology = changed;
        moved = true;
        break;
      }
    }
    if (!moved) step = std::sqrt(step);
    if (step < 1.02) break;
  }
  std::vector<double> errors;
  for (const Prepared& one : calls) {
    fitted.predicted_us.push_back(one.predicted_us(fitted.topology));
    errors.push_back(std::abs(fitted.predicted_us.back() / one.seen->us - 1));
  }
  fitted.median_error = median(errors);
  return fitted;
}

}  // namespace collective_ops::tune
