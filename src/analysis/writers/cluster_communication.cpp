// cluster_communication.json and cluster_communication_matrix.json: group -> step -> operator -> rank or
// link.
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "analysis/writers/ascend_cluster.h"
#include "analysis/writers/operator_total.h"
#include "analysis/writers/output_file.h"
#include "trace/timeline.h"

namespace collective_ops {
namespace {

constexpr std::array<std::string_view, 5> kLinks = {"RDMA", "HCCS", "PCIE", "SDMA", "SIO"};
constexpr std::string_view kTotal = "Total Op Info";

// Writes objects within objects: opens and closes what changes from one entry to the next.
class Nesting {
 public:
  explicit Nesting(OutputFile* out) : out_(*out) { out_.print("{{"); }
  // Keys from the outermost; the caller prints the innermost value.
  template <size_t kDepth>
  void enter(const std::array<std::string_view, kDepth>& keys) {
    size_t same = 0;
    while (same < open_.size() && same + 1 < kDepth && open_[same] == keys[same]) ++same;
    for (size_t i = open_.size(); i > same; --i) out_.print("}}");
    open_.resize(same);
    for (size_t i = same; i < kDepth; ++i) {
      out_.print("{}{}: ", i == same && !fresh_ ? ", " : "", json_text(keys[i]));
      if (i + 1 < kDepth) {
        out_.print("{{");
        open_.emplace_back(keys[i]);
      }
    }
    fresh_ = false;
  }
  void close() {
    for (size_t i = 0; i <= open_.size(); ++i) out_.print("}}");
  }

 private:
  OutputFile& out_;
  std::vector<std::string> open_;
  bool fresh_ = true;
};

struct NamedLink {
  std::string_view name;
  const LinkTraffic* traffic;
};

void print_times(OutputFile* out, const OperatorTimes& times, bool total) {
  out->print("{{\"Communication Time Info\": {{");
  if (!total) out->print("\"Start Timestamp(us)\": {}, ", times.start_us);
  out->print(
      "\"Elapse Time(ms)\": {}, \"Transit Time(ms)\": {}, \"Wait Time(ms)\": {}, \"Synchronization "
      "Time(ms)\": {}, "
      "\"Idle Time(ms)\": {}, \"Wait Time Ratio\": {}, \"Synchronization Time Ratio\": {}}}, ",
      times.elapse_ms, times.transit_ms, times.wait_ms, times.synchronization_ms, times.idle_ms,
      ratio(times.wait_ms, times.transit_ms), ratio(times.synchronization_ms, times.transit_ms));
}

void print_link(OutputFile* out, std::string_view name, const LinkTraffic* traffic, bool total) {
  static const LinkTraffic kNothing;
  const LinkTraffic& link = traffic != nullptr ? *traffic : kNothing;
  out->print("{}: {{\"Transit Size(MB)\": {}, \"Transit Time(ms)\": {}, \"Bandwidth(GB/s)\": {}, ",
             json_text(name), link.megabytes, link.milliseconds, link.gigabytes_per_second);
  if (!total) out->print("\"Large Packet Ratio\": {}, ", link.large_packet_ratio);
  out->print("\"Size Distribution\": {{");
  for (size_t i = 0; i < link.sizes.size(); ++i) {
    const SizeClass& size = link.sizes[i];
    out->print("{}\"{}\": [{}, {}]", i == 0 ? "" : ", ", size.megabytes, size.count, size.milliseconds);
  }
  out->print("}}}}");
}

// All five kinds of links, also those without traffic, as the profiler lists them.
void print_links(OutputFile* out, const std::vector<NamedLink>& links, bool total) {
  out->print("\"Communication Bandwidth Info\": {{");
  bool first = true;
  for (const std::string_view name : kLinks) {
    const auto at =
        std::find_if(links.begin(), links.end(), [&](const NamedLink& link) { return link.name == name; });
    out->print("{}", first ? "" : ", ");
    print_link(out, name, at == links.end() ? nullptr : at->traffic, total);
    first = false;
  }
  for (const NamedLink& link : links) {
    if (std::find(kLinks.begin(), kLinks.end(), link.name) != kLinks.end()) continue;
    out->print(", ");
    print_link(out, link.name, link.traffic, total);
  }
  out->print("}}}}");
}

// Dense numbers for texts, in the order in which they come; operators of all ranks are sorted by them.
struct OperatorRow {
  uint32_t label, step, name;
  uint32_t rank_row;
  const CommunicationOperator* op;
};

const ClusterGroup& group_of(const ClusterGroups& groups, std::string_view hash, bool messages) {
  return (messages ? groups.point_to_point : groups.by_hash).find(std::string(hash))->second;
}

std::string keyed(std::string_view name, std::string_view hash) {
  return hash.empty() ? std::string(name) : fmt::format("{}@{}", name, hash);
}

// A rank's own names as those of all ranks.
class SharedNames {
 public:
  SharedNames(const RankProfile& profile, const ClusterGroups& groups, NameTable* names)
      : profile_(profile), groups_(groups), names_(*names), step_(profile.names.size(), UINT32_MAX) {}
  uint32_t step(uint32_t id) {
    if (step_[id] == UINT32_MAX) step_[id] = names_.intern(profile_.names[id]);
    return step_[id];
  }
  uint32_t label(uint32_t group, bool messages) {
    const auto [at, fresh] = label_.try_emplace({group, messages}, 0);
    if (fresh) at->second = names_.intern(group_of(groups_, profile_.names[group], messages).label());
    return at->second;
  }
  uint32_t key(uint32_t name, uint32_t group) {
    const auto [at, fresh] = key_.try_emplace({name, group}, 0);
    if (fresh) at->second = names_.intern(keyed(profile_.names[name], profile_.names[group]));
    return at->second;
  }

 private:
  const RankProfile& profile_;
  const ClusterGroups& groups_;
  NameTable& names_;
  std::vector<uint32_t> step_;
  std::map<std::pair<uint32_t, bool>, uint32_t> label_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> key_;
};

std::vector<OperatorRow> sorted_operators(const ProfileSet& set, const ClusterGroups& groups,
                                          NameTable* names) {
  std::vector<OperatorRow> rows;
  for (uint32_t row = 0; row < set.ranks.size(); ++row) {
    const RankProfile& profile = set.ranks[row];
    SharedNames shared(profile, groups, names);
    for (const CommunicationOperator& op : profile.operators) {
      rows.push_back({shared.label(op.group, op.point_to_point), shared.step(op.step),
                      shared.key(op.name, op.group), row, &op});
    }
  }
  std::sort(rows.begin(), rows.end(), [](const OperatorRow& a, const OperatorRow& b) {
    return std::tuple(a.label, a.step, a.name, a.rank_row) < std::tuple(b.label, b.step, b.name, b.rank_row);
  });
  return rows;
}

// Sums over the operators of one group and step, by group hash and rank.
void print_totals(Nesting* nesting, OutputFile* out, std::string_view label, std::string_view step,
                  const ProfileSet& set,
                  std::map<std::pair<std::string_view, uint32_t>, OperatorTotal>* totals) {
  for (auto& [key, total] : *totals) {
    nesting->enter<4>({label, step, keyed(kTotal, key.first), std::to_string(set.ranks[key.second].rank)});
    std::vector<NamedLink> links;
    for (auto& [name, link] : total.links) {
      link.gigabytes_per_second = bandwidth(link.megabytes, link.milliseconds);
      links.push_back({name, &link});
    }
    print_times(out, total.times, true);
    print_links(out, links, true);
  }
  totals->clear();
}

}  // namespace

Status write_cluster_communication(const ProfileSet& set, const ClusterGroups& groups,
                                   const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  OutputFile& out = **file;
  NameTable names;
  const std::vector<OperatorRow> rows = sorted_operators(set, groups, &names);
  Nesting nesting(&out);
  std::map<std::pair<std::string_view, uint32_t>, OperatorTotal> totals;
  std::vector<NamedLink> links;
  for (size_t i = 0; i < rows.size(); ++i) {
    const OperatorRow& row = rows[i];
    const RankProfile& profile = set.ranks[row.rank_row];
    nesting.enter<4>({names[row.label], names[row.step], names[row.name], std::to_string(profile.rank)});
    links.clear();
    for (const LinkTraffic& link : row.op->links) links.push_back({profile.names[link.link], &link});
    print_times(&out, row.op->times, false);
    print_links(&out, links, false);
    totals[{profile.names[row.op->group], row.rank_row}].add(profile, *row.op);
    if (i + 1 == rows.size() || rows[i + 1].label != row.label || rows[i + 1].step != row.step) {
      print_totals(&nesting, &out, names[row.label], names[row.step], set, &totals);
    }
  }
  nesting.close();
  return out.finish();
}

namespace {

struct LinkSum {
  std::string_view transport, operator_name;
  double megabytes = 0, milliseconds = 0;
};

struct MatrixRow {
  uint32_t label, step, name;
  int source, destination;
  uint32_t rank_row;
  const MatrixEntry* entry;
};

void print_matrix_link(OutputFile* out, const LinkSum& link) {
  out->print(
      "{{\"Transport Type\": {}, \"Transit Time(ms)\": {}, \"Transit Size(MB)\": {}, \"Op Name\": {}, "
      "\"Bandwidth(GB/s)\": {}}}",
      json_text(link.transport), link.milliseconds, link.megabytes, json_text(link.operator_name),
      bandwidth(link.megabytes, link.milliseconds));
}

std::vector<MatrixRow> sorted_links(const ProfileSet& set, const ClusterGroups& groups, NameTable* names) {
  std::vector<MatrixRow> rows;
  for (uint32_t row = 0; row < set.ranks.size(); ++row) {
    const RankProfile& profile = set.ranks[row];
    SharedNames shared(profile, groups, names);
    for (const MatrixEntry& entry : profile.matrix) {
      const ClusterGroup& group = group_of(groups, profile.names[entry.group], entry.point_to_point);
      const auto last = static_cast<int>(group.locals.size());
      if (entry.source >= last || entry.destination >= last) continue;  // find_groups() tells of it
      rows.push_back({shared.label(entry.group, entry.point_to_point), shared.step(entry.step),
                      shared.key(entry.name, entry.group), group.locals[static_cast<size_t>(entry.source)],
                      group.locals[static_cast<size_t>(entry.destination)], row, &entry});
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const MatrixRow& a, const MatrixRow& b) {
    return std::tuple(a.label, a.step, a.name, a.source, a.destination) <
           std::tuple(b.label, b.step, b.name, b.source, b.destination);
  });
  return rows;
}

}  // namespace

Status write_cluster_matrix(const ProfileSet& set, const ClusterGroups& groups,
                            const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  OutputFile& out = **file;
  NameTable names;
  const std::vector<MatrixRow> rows = sorted_links(set, groups, &names);
  Nesting nesting(&out);
  // By group hash and link. Where the profiler sums its kinds itself, those sums are taken, else all entries.
  using Link = std::tuple<std::string_view, int, int>;
  std::map<Link, LinkSum> totals, singles;
  for (size_t i = 0; i < rows.size(); ++i) {
    const MatrixRow& row = rows[i];
    const RankProfile& profile = set.ranks[row.rank_row];
    LinkSum link{profile.names[row.entry->transport], profile.names[row.entry->operator_name],
                 row.entry->megabytes, row.entry->milliseconds};
    const std::string_view name = profile.names[row.entry->name];
    const bool sum = name.ends_with("-total");
    if (sum || name.find("__") != std::string_view::npos) {
      LinkSum& total =
          (sum ? totals : singles)[{profile.names[row.entry->group], row.source, row.destination}];
      total.transport = link.transport;
      total.megabytes += link.megabytes;
      total.milliseconds += link.milliseconds;
    }
    const bool repeated = i + 1 < rows.size() && rows[i + 1].name == row.name &&
                          rows[i + 1].step == row.step && rows[i + 1].label == row.label &&
                          rows[i + 1].source == row.source && rows[i + 1].destination == row.destination;
    if (!repeated) {  // both ends may tell of a link: the one with the larger rank is kept
      nesting.enter<4>({names[row.label], names[row.step], names[row.name],
                        fmt::format("{}-{}", row.source, row.destination)});
      print_matrix_link(&out, link);
    }
    if (i + 1 < rows.size() && rows[i + 1].label == row.label && rows[i + 1].step == row.step) continue;
    for (const auto& [key, total] : totals.empty() ? singles : totals) {
      const auto& [hash, source, destination] = key;
      nesting.enter<4>({names[row.label], names[row.step], keyed(kTotal, hash),
                        fmt::format("{}-{}", source, destination)});
      print_matrix_link(&out, total);
    }
    totals.clear();
    singles.clear();
  }
  nesting.close();
  return out.finish();
}

}  // namespace collective_ops
