// Who is in a group, for texts and reports, which speak of ranks of the world always. On one host alone ranks
// of the host are those of the world; where a job has several hosts, `places` tells them apart.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace collective_ops {

// Of a job on several hosts.
struct MemberPlaces {
  std::vector<int> world;  // rank of the world, by rank of this host
  std::vector<int> all;    // the group's ranks of the world, those on other hosts included
};

struct Members {
  std::vector<int> ranks;  // of this host, by rank in the group (or in the part of it that is on this host)
  std::string name;        // "" where it has none
  uint32_t parent = 0;     // the id of the group that it was made in
  uint32_t id = 0;         // equal on all members; 0: the world
  std::shared_ptr<const MemberPlaces> places;  // none where the job is on one host

  static Members world(int world_size);

  bool is_world() const { return id == 0; }
  int world_rank(int rank) const {
    const int here = ranks[static_cast<size_t>(rank)];
    return places ? places->world[static_cast<size_t>(here)] : here;
  }
  // Ranks of the world of all members, on whichever host.
  const std::vector<int>& all() const { return places ? places->all : ranks; }
  // "the group" of the world; "group \"tp\" of ranks 4,5,6,7" of others.
  std::string text() const;
  // "rank 2", or "ranks 0-2,5": of ranks in the group.
  std::string list(std::span<const int> ranks) const;
};

// "group \"tp\" of ranks 4,5,6,7"; long lists are cut.
std::string group_text(std::string_view name, std::span<const int> world_ranks);

}  // namespace collective_ops
