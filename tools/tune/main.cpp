// What `collective-ops tune` measures and knows, as JSON.
//   _tune probe CACHE_BYTES SHARED_CACHE_BYTES CPU...     the machine's numbers
//   _tune explain COLLECTIVE TYPE shared|private RANKS CORES HOSTS NAME=NUMBER... SIZE...
//                                                         candidates of each size, with these numbers
//   _tune sweep COLLECTIVE TYPE RANKS ROUNDS BATCH_MS SIZE...
//                                                         every candidate of each size, timed
//   _tune table [FILE]                                    the tuning table of FILE, or the one that is built
//   in
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "explain.h"
#include "probe.h"
#include "sweep.h"
#include "tuner/table.h"

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

int run_probe(const std::vector<std::string>& words) {
  std::vector<int> processors;
  for (size_t i = 2; i < words.size(); ++i) processors.push_back(std::atoi(words[i].c_str()));
  const auto result = probe(processors, std::strtoull(words[0].c_str(), nullptr, 10),
                            std::strtoull(words[1].c_str(), nullptr, 10));
  if (!result.ok()) return fail(result.status().message());
  const Topology& topology = result->topology;
  Json numbers = Json::array();
  for (const TopologyNumber& one : topology_numbers()) {
    numbers.push_back(
        {{"name", one.name}, {"value", topology.*one.value}, {"unit", one.unit}, {"meaning", one.meaning}});
  }
  return show({{"cores", topology.cores},
               {"cache_bytes", topology.cache_bytes},
               {"shared_cache_bytes", topology.shared_cache_bytes},
               {"numbers", numbers},
               {"calls", result->calls},
               {"median_error", result->median_error},
               {"worst_error", result->worst_error},
               {"seconds", result->seconds}});
}

Json as_json(const Explained& one) {
  const Cost& cost = one.candidate.cost;
  return {{"algorithm", one.candidate.name},
          {"path", one.candidate.path},
          {"chosen", one.chosen},
          {"ordered", one.candidate.ordered},
          {"total_ns", cost.total_ns()},
          {"latency_ns", cost.latency_ns},
          {"core_ns", cost.core_ns},
          {"memory_ns", cost.memory_ns},
          {"link_ns", cost.link_ns},
          {"rounds", cost.rounds},
          {"copied_bytes", cost.copied_bytes},
          {"reduced_bytes", cost.reduced_bytes},
          {"memory_bytes", cost.memory_bytes}};
}

// Words that are no NAME=NUMBER are sizes; false: a name that there is not.
bool read_numbers(const std::vector<std::string>& words, size_t first, Topology& topology,
                  std::vector<size_t>& sizes) {
  for (size_t i = first; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    if (equals == std::string::npos) {
      sizes.push_back(std::strtoull(words[i].c_str(), nullptr, 10));
    } else if (!set_number(topology, words[i].substr(0, equals),
                           std::strtod(&words[i][equals + 1], nullptr))) {
      return false;
    }
  }
  return !sizes.empty();
}

int run_explain(const std::vector<std::string>& words) {
  const auto collective = collective_from(words[0]);
  const auto type = data_type_from(words[1]);
  if (!collective || *collective > Collective::kAllToAll || !type) {
    return fail(fmt::format("there is no explanation of {} of {}", words[0], words[1]));
  }
  Topology topology = measured_defaults(std::atoi(words[3].c_str()), std::atoi(words[4].c_str()));
  topology.hosts = std::atoi(words[5].c_str());
  std::vector<size_t> asked;
  if (!read_numbers(words, 6, topology, asked)) return fail("explain: a number or the sizes are missing");
  Json sizes = Json::array();
  for (const size_t bytes : asked) {
    const Question question{*collective, *type, bytes, words[2] == "shared"};
    const auto explained =
        topology.hosts > 1 ? explain_hosts(question, topology) : explain(question, topology);
    // A forced algorithm may be impossible at some sizes: of the first, which was asked for, that is an
    // error.
    if (!explained.ok() && sizes.empty()) return fail(explained.status().message());
    Json list = Json::array();
    if (explained.ok()) {
      for (const Explained& one : explained.value()) list.push_back(as_json(one));
    }
    sizes.push_back({{"bytes", bytes}, {"candidates", list}});
  }
  return show(sizes);
}

int run_sweep(const std::vector<std::string>& words) {
  const auto collective = collective_from(words[0]);
  const auto type = data_type_from(words[1]);
  if (!collective || *collective > Collective::kAllToAll || !type) {
    return fail(fmt::format("there is no sweep of {} of {}", words[0], words[1]));
  }
  SweepSpec spec{.collective = *collective,
                 .type = *type,
                 .ranks = std::atoi(words[2].c_str()),
                 .rounds = std::atoi(words[3].c_str()),
                 .batch_ms = std::strtod(words[4].c_str(), nullptr)};
  for (size_t i = 5; i < words.size(); ++i)
    spec.sizes.push_back(std::strtoull(words[i].c_str(), nullptr, 10));
  const auto points = sweep(spec);
  if (!points.ok()) return fail(points.status().message());
  Json list = Json::array();
  for (const SweepPoint& one : points.value()) {
    list.push_back({{"bytes", one.bytes},
                    {"shared", one.shared},
                    {"algorithm", one.algorithm},
                    {"path", one.path},
                    {"chosen", one.chosen},
                    {"ordered", one.ordered},
                    {"us", one.us}});
  }
  return show(list);
}

int run_table(const std::vector<std::string>& words) {
  const auto table = words.empty() ? Result<Table>(builtin_table()) : Table::read(words[0]);
  if (!table.ok()) return fail(table.status().message());
  std::fputs(table->text().c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
  const std::string_view action = argc > 1 ? argv[1] : "";
  if (action == "probe" && words.size() >= 3) return run_probe(words);
  if (action == "explain" && words.size() > 6) return run_explain(words);
  if (action == "table") return run_table(words);
  if (action == "sweep" && words.size() > 5) return run_sweep(words);
  return fail("started by `collective-ops tune`, which gives it what it needs");
}
