// The files that msprof-analyze writes into cluster_analysis_output/, with its names, columns and units.
#pragma once

#include <filesystem>
#include <vector>

#include <collective_ops/status.h>

#include "analysis/cluster_groups.h"
#include "analysis/profile_set.h"

namespace collective_ops {

Status write_step_trace_time(const ProfileSet& set, const std::filesystem::path& path);
Status write_cluster_communication(const ProfileSet& set, const ClusterGroups& groups,
                                   const std::filesystem::path& path);
Status write_cluster_matrix(const ProfileSet& set, const ClusterGroups& groups,
                            const std::filesystem::path& path);
Status write_communication_group(const ClusterGroups& groups, const std::filesystem::path& path);

}  // namespace collective_ops
