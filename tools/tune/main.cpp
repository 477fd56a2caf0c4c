// What `collective-ops tune` measures and knows, as JSON.
//   _tune probe CACHE_BYTES CPU...                       the machine's numbers
//   _tune explain COLLECTIVE TYPE shared|private RANKS CORES COPY REDUCE MEMORY CACHE SIGNAL YIELD SIZE...
//                                                        candidates of each size, with these numbers
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "explain.h"
#include "probe.h"

namespace {

using namespace collective_ops;
using namespace collective_ops::tune;
using Json = nlohmann::ordered_json;

int fail(std::string_view text) {
  fmt::print(stderr, "{}\n", text);
  return 1;
}

int show(const Json& document) {
  std::fputs((document.dump() + "\n").c_str(), stdout);
  return 0;
}

Json as_json(const Fit& fit) {
  return {{"start_ns", fit.start_ns}, {"bytes_per_ns", fit.bytes_per_ns}, {"residual", fit.residual}};
}

int run_probe(const std::vector<std::string>& words) {
  std::vector<int> processors;
  for (size_t i = 1; i < words.size(); ++i) processors.push_back(std::atoi(words[i].c_str()));
  const auto result = probe(processors, std::strtoull(words[0].c_str(), nullptr, 10));
  if (!result.ok()) return fail(result.status().message());
  const Topology& topology = result->topology;
  return show({{"cores", topology.cores},
               {"copy_bytes_per_ns", topology.copy_bytes_per_ns},
               {"reduce_bytes_per_ns", topology.reduce_bytes_per_ns},
               {"memory_bytes_per_ns", topology.memory_bytes_per_ns},
               {"cache_bytes", topology.cache_bytes},
               {"signal_ns", topology.signal_ns},
               {"yield_ns", topology.yield_ns},
               {"copy_fit", as_json(result->copy)},
               {"reduce_fit", as_json(result->reduce)},
               {"seconds", result->seconds}});
}

Json as_json(const Candidate& one) {
  return {{"algorithm", one.name},
          {"path", one.path},
          {"chosen", one.chosen},
          {"total_ns", one.cost.total_ns()},
          {"latency_ns", one.cost.latency_ns},
          {"core_ns", one.cost.core_ns},
          {"memory_ns", one.cost.memory_ns},
          {"rounds", one.cost.rounds},
          {"copied_bytes", one.cost.copied_bytes},
          {"reduced_bytes", one.cost.reduced_bytes},
          {"memory_bytes", one.cost.memory_bytes}};
}

constexpr size_t kNumbers = 11;  // words before the sizes

int run_explain(const std::vector<std::string>& words) {
  const auto collective = collective_from(words[0]);
  const auto type = data_type_from(words[1]);
  if (!collective || *collective > Collective::kAllToAll || !type) {
    return fail(fmt::format("there is no explanation of {} of {}", words[0], words[1]));
  }
  const auto number = [&](size_t i) { return std::strtod(words[i].c_str(), nullptr); };
  const Topology topology{.ranks = static_cast<int>(number(3)),
                          .cores = static_cast<int>(number(4)),
                          .copy_bytes_per_ns = number(5),
                          .reduce_bytes_per_ns = number(6),
                          .memory_bytes_per_ns = number(7),
                          .cache_bytes = static_cast<uint64_t>(number(8)),
                          .signal_ns = number(9),
                          .yield_ns = number(10)};
  Json sizes = Json::array();
  for (size_t i = kNumbers; i < words.size(); ++i) {
    const Question question{*collective, *type, std::strtoull(words[i].c_str(), nullptr, 10),
                            words[2] == "shared"};
    const auto candidates = explain(question, topology);
    // A forced algorithm may be impossible at some sizes: of the first, which was asked for, that is an
    // error.
    if (!candidates.ok() && i == kNumbers) return fail(candidates.status().message());
    Json list = Json::array();
    if (candidates.ok()) {
      for (const Candidate& one : candidates.value()) list.push_back(as_json(one));
    }
    sizes.push_back({{"bytes", question.bytes}, {"candidates", list}});
  }
  return show(sizes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
  const std::string_view action = argc > 1 ? argv[1] : "";
  if (action == "probe" && words.size() >= 2) return run_probe(words);
  if (action == "explain" && words.size() > kNumbers) return run_explain(words);
  return fail("started by `collective-ops tune`, which gives it what it needs");
}
