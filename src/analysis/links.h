// Links that are slower than others of their kind.
#pragma once

#include <string>
#include <vector>

#include "analysis/cluster_groups.h"
#include "analysis/profile_set.h"

namespace collective_ops {

struct LinkSpeed {
  int source = 0, destination = 0;  // ranks of the job
  std::string transport;            // HCCS, RDMA ...
  double megabytes = 0;
  double milliseconds = 0;
  double gigabytes_per_second = 0;
};

struct SlowLink {
  LinkSpeed link;
  double usual_gigabytes_per_second = 0;  // median of the links of its kind
  double lost_ms = 0;                     // against that median
  std::string cause;                      // one link, or all of a rank
};

struct LinkAnalysis {
  std::vector<LinkSpeed> links;  // all that moved bytes between two ranks, of the whole profile
  std::vector<SlowLink> slow;    // most lost first; empty: none
};

LinkAnalysis analyze_links(const ProfileSet& set, const ClusterGroups& groups);

}  // namespace collective_ops
