#include "analysis/cluster_groups.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace collective_ops {
namespace {

struct Seen {
  std::set<int> ranks;         // that have operators or links of it
  int largest_local = -1;      // in links
  bool numbered_alike = true;  // each rank's copy on itself, k-k, has its number in the job
};

void see_operators(const RankProfile& profile, std::map<std::string, Seen>* collective,
                   std::map<std::string, Seen>* point_to_point) {
  std::vector<Seen*> known;  // by name id, so that each group is looked up once
  const auto seen = [&](uint32_t group, bool messages) -> Seen& {
    const size_t index = size_t{group} * 2 + (messages ? 1 : 0);
    if (index >= known.size()) known.resize(index + 16, nullptr);
    if (known[index] == nullptr) {
      known[index] = &(*(messages ? point_to_point : collective))[std::string(profile.names[group])];
    }
    return *known[index];
  };
  for (const CommunicationOperator& op : profile.operators) {
    seen(op.group, op.point_to_point).ranks.insert(profile.rank);
  }
  for (const MatrixEntry& entry : profile.matrix) {
    Seen& group = seen(entry.group, entry.point_to_point);
    group.ranks.insert(profile.rank);
    group.largest_local = std::max({group.largest_local, entry.source, entry.destination});
    if (entry.source == entry.destination && entry.source != profile.rank) group.numbered_alike = false;
  }
}

const ProfiledGroup* described(const ProfileSet& set, const std::string& hash) {
  for (const RankProfile& profile : set.ranks) {
    for (const ProfiledGroup& group : profile.groups) {
      if (group.hash == hash && !group.ranks.empty()) return &group;
    }
  }
  return nullptr;
}

// Of a group whose members no profile lists.
std::string id_of(const ProfileSet& set, const std::string& hash) {
  for (const RankProfile& profile : set.ranks) {
    for (const ProfiledGroup& group : profile.groups) {
      if (group.hash == hash) return group.id;
    }
  }
  return {};
}

ClusterGroup resolve(const ProfileSet& set, const std::string& hash, const Seen& seen,
                     ClusterGroups* groups) {
  ClusterGroup group;
  group.hash = hash;
  group.id = id_of(set, hash);
  group.ranks.assign(seen.ranks.begin(), seen.ranks.end());
  const size_t least = static_cast<size_t>(seen.largest_local) + 1;
  if (const ProfiledGroup* known = described(set, hash); known != nullptr) {
    group.id = known->id;
    group.description = known->description;
    group.ranks = known->ranks;
  } else if (group.ranks.size() < least && seen.numbered_alike) {
    group.ranks.resize(least);
    std::iota(group.ranks.begin(), group.ranks.end(), 0);
  } else if (group.ranks.size() < least) {
    groups->findings.push_back(fmt::format(
        "group {}: profiles of {} of at least {} members are there, and none says who the others are; "
        "its links are left out",
        hash, group.ranks.size(), least));
    return group;
  }
  group.locals = group.ranks;
  std::vector<int> absent;
  std::set_difference(group.ranks.begin(), group.ranks.end(), seen.ranks.begin(), seen.ranks.end(),
                      std::back_inserter(absent));
  if (!absent.empty()) {
    groups->findings.push_back(fmt::format("group {} of {} ranks: nothing of ranks {}", hash,
                                           group.ranks.size(), rank_tuple(absent)));
  }
  return group;
}

// Joins sets that share a rank.
class Union {
 public:
  void join(const std::vector<int>& ranks) {
    for (const int rank : ranks) parent_[root(rank)] = root(ranks.front());
  }
  std::vector<std::vector<int>> sets() {
    std::map<int, std::vector<int>> by_root;
    std::vector<int> all;
    all.reserve(parent_.size());
    for (const auto& [rank, parent] : parent_) all.push_back(rank);
    for (const int rank : all) by_root[root(rank)].push_back(rank);
    std::vector<std::vector<int>> result;
    for (auto& [key, ranks] : by_root) result.push_back(std::move(ranks));
    std::sort(result.begin(), result.end());
    return result;
  }

 private:
  int root(int rank) {
    parent_.try_emplace(rank, rank);
    while (parent_[rank] != rank) rank = parent_[rank] = parent_[parent_[rank]];
    return rank;
  }
  std::map<int, int> parent_;
};

}  // namespace

std::string rank_tuple(const std::vector<int>& ranks) {
  std::string text = "(";
  for (size_t i = 0; i < ranks.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  return text + (ranks.size() == 1 ? ",)" : ")");
}

std::string ClusterGroup::label() const { return point_to_point ? "p2p" : rank_tuple(ranks); }

ClusterGroups find_groups(const ProfileSet& set) {
  std::map<std::string, Seen> collective, messages;
  for (const RankProfile& profile : set.ranks) see_operators(profile, &collective, &messages);
  ClusterGroups groups;
  for (const auto& [hash, seen] : collective) groups.by_hash[hash] = resolve(set, hash, seen, &groups);
  for (const auto& [hash, seen] : messages) {
    groups.point_to_point[hash] = resolve(set, hash, seen, &groups);
    groups.point_to_point[hash].point_to_point = true;
  }
  return groups;
}

std::vector<std::vector<int>> pipeline_stages(const ProfileSet& set) {
  Union pipelines, stages;
  std::set<std::vector<int>> others;
  for (const RankProfile& profile : set.ranks) {
    for (const ProfiledGroup& group : profile.groups) {
      if (group.ranks.empty()) continue;
      if (group.description.starts_with("pp")) {
        pipelines.join(group.ranks);
      } else {
        others.insert(group.ranks);
      }
    }
  }
  const std::vector<std::vector<int>> chains = pipelines.sets();
  if (chains.empty()) return {};
  for (const std::vector<int>& group : others) {
    // A group that has two ranks of one pipeline spans stages.
    const bool inside = std::all_of(chains.begin(), chains.end(), [&](const std::vector<int>& chain) {
      std::vector<int> common;
      std::set_intersection(chain.begin(), chain.end(), group.begin(), group.end(),
                            std::back_inserter(common));
      return common.size() <= 1;
    });
    if (inside) stages.join(group);
  }
  return stages.sets();
}

}  // namespace collective_ops
