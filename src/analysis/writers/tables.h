// Tables of our own as CSV; docs/analysis.md lists their columns and units.
#pragma once

#include <filesystem>
#include <vector>

#include <collective_ops/status.h>

#include "analysis/call_statistics.h"
#include "analysis/links.h"
#include "analysis/profile_set.h"
#include "analysis/waits.h"

namespace collective_ops {

Status write_summary(const ProfileSet& set, const WaitAnalysis& waits, const std::filesystem::path& path);
Status write_time_summary(const ProfileSet& set, const WaitAnalysis& waits,
                          const std::filesystem::path& path);
Status write_call_statistics(const std::vector<CallStatistics>& calls, const std::filesystem::path& path);
Status write_slow_ranks(const ProfileSet& set, const WaitAnalysis& waits, const std::filesystem::path& path);
Status write_slow_links(const LinkAnalysis& links, const std::filesystem::path& path);

}  // namespace collective_ops
