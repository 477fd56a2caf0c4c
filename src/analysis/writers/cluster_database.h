// cluster_analysis.db, as msprof-analyze writes it for db exports and MindStudio Insight opens it.
#pragma once

#include <filesystem>

#include <collective_ops/status.h>

#include "analysis/cluster_groups.h"
#include "analysis/profile_set.h"

namespace collective_ops {

Status write_cluster_database(const ProfileSet& set, const ClusterGroups& groups,
                              const std::filesystem::path& path);

}  // namespace collective_ops
