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

constexpr StagingMemory kMemory{shm::kInlineBytes, shm::kEagerBytes, shm::kScratchBytes};

}  // namespace

Result<std::vector<Explained>> explain(const Question& question, const Topology& topology) {
  const int ranks = topology.ranks;
  const Call call = call_of(question, ranks);
  const auto chosen = choice_of(call, question.shared, ranks);
  if (!chosen.ok()) return chosen.status();
  auto found = candidates_of({question.collective, call.count, size_of(call.type), question.shared}, topology,
                             kMemory);
  if (!found.ok()) return found.status();
  std::vector<Explained> explained;
  for (const Candidate& one : *found) explained.push_back({one, one.name == chosen.value()});
  std::stable_sort(explained.begin(), explained.end(), [](const Explained& a, const Explained& b) {
    return a.candidate.cost.total_ns() < b.candidate.cost.total_ns();
  });
  return explained;
}

}  // namespace collective_ops::tune
