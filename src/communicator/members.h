// Who is in a group, for texts and reports, which speak of ranks of the world always.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace collective_ops {

struct Members {
  std::vector<int> ranks;  // of the world, by rank in the group
  std::string name;        // "" where it has none
  uint32_t parent = 0;     // the id of the group that it was made in
  uint32_t id = 0;         // equal on all members; 0: the world

  static Members world(int world_size);

  bool is_world() const { return id == 0; }
  int world_rank(int rank) const { return ranks[static_cast<size_t>(rank)]; }
  // "the group" of the world; "group \"tp\" of ranks 4,5,6,7" of others.
  std::string text() const;
  // "rank 2", or "ranks 0-2,5": of ranks in the group.
  std::string list(std::span<const int> ranks) const;
};

// "group \"tp\" of ranks 4,5,6,7"; long lists are cut.
std::string group_text(std::string_view name, std::span<const int> world_ranks);

}  // namespace collective_ops
