// What `collective-ops topo` shows, as JSON: this host, and the links between processors.
//   _topo               the host
//   _topo 0 1 1         and the links between processors 0, 1 and 1, all pairs
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "host.h"
#include "links.h"

namespace {

using namespace collective_ops;
using namespace collective_ops::topo;
using Json = nlohmann::ordered_json;

Json as_json(const Host& host) {
  Json processors = Json::array(), caches = Json::array(), nodes = Json::array(), interfaces = Json::array();
  for (const Processor& one : host.processors) {
    processors.push_back({{"cpu", one.number},
                          {"core", one.core},
                          {"socket", one.socket},
                          {"numa_node", one.numa_node},
                          {"allowed", one.allowed}});
  }
  for (const Cache& cache : host.caches) {
    caches.push_back({{"level", cache.level}, {"bytes", cache.bytes}, {"cpus", cache.processors}});
  }
  for (const NumaNode& node : host.numa_nodes)
    nodes.push_back({{"node", node.number}, {"bytes", node.bytes}});
  for (const Interface& one : host.interfaces) {
    interfaces.push_back({{"name", one.name},
                          {"up", one.up},
                          {"addresses", one.addresses},
                          {"megabits", one.megabits < 0 ? Json() : Json(one.megabits)}});
  }
  return {{"host", host.name}, {"processor", host.processor}, {"cpus", processors},
          {"caches", caches},  {"numa_nodes", nodes},         {"interfaces", interfaces}};
}

// Rows send, columns receive; null on the diagonal and where a pair could not be measured.
Status add_links(const std::vector<int>& ends, Json& document) {
  const size_t n = ends.size();
  const std::vector<Json> row(n);
  std::vector<std::vector<Json>> latency(n, row), bandwidth(n, row);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      const auto measured = measure_link(ends[i], ends[j]);
      if (!measured.ok()) return measured.status();
      const std::optional<Link>& link = measured.value();
      if (!link) continue;
      latency[i][j] = latency[j][i] = link->latency_ns;
      bandwidth[i][j] = link->forward_gbs;
      bandwidth[j][i] = link->backward_gbs;
    }
  }
  document["link_bytes"] = kLinkBytes;
  document["latency_ns"] = latency;
  document["bandwidth_gbs"] = bandwidth;
  return {};
}

int fail(std::string_view text) {
  fmt::print(stderr, "{}\n", text);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> ends;
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    int processor = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), processor);
    if (error != std::errc() || end != text.data() + text.size() || processor < 0 || processor >= 1024) {
      return fail(fmt::format("\"{}\" is no number of a processor", text));
    }
    ends.push_back(processor);
  }
  const auto host = describe_host();
  if (!host.ok()) return fail(host.status().message());
  Json document = as_json(host.value());
  if (Status status = add_links(ends, document); !status.ok()) return fail(status.message());
  std::fputs((document.dump() + "\n").c_str(), stdout);
  return 0;
}
