// The communication groups of a job, as the Ascend profiles of its ranks show them together.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "analysis/profile_set.h"

namespace collective_ops {

struct ClusterGroup {
  std::string hash;         // "" of operators without a group
  std::string id;           // "" where no profile says it
  std::string description;  // "tp", "dp" ...
  std::vector<int> ranks;   // members, ascending, absent ones too as far as they are known
  std::vector<int> locals;  // locals[k] is the rank of the job that is k in the group
  bool point_to_point = false;

  std::string label() const;  // "(0, 1, 2)", as files of the existing tools write it; "p2p"
};

struct ClusterGroups {
  std::map<std::string, ClusterGroup> by_hash;         // of collectives
  std::map<std::string, ClusterGroup> point_to_point;  // by hash, too
  std::vector<std::string> findings;                   // members that are absent or unknown
};

// Members from the metadata; else the ranks that have operators of the group, with those that their links
// show where group and job number ranks alike.
ClusterGroups find_groups(const ProfileSet& set);

// The ranks of each pipeline stage, from groups called pp; empty without.
std::vector<std::vector<int>> pipeline_stages(const ProfileSet& set);

std::string rank_tuple(const std::vector<int>& ranks);  // "(0, 1)", "(3,)"

}  // namespace collective_ops
