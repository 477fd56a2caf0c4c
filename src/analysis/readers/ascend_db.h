// The db export of the Ascend profilers: analysis.db (steps, operators, links) and the profiler's own
// database (groups, host, and who waited for whom). Missing tables are no fault; damage is a note.
#pragma once

#include <filesystem>

#include "analysis/profile.h"

namespace collective_ops {

// `output` is ASCEND_PROFILER_OUTPUT. Returns whether a database was there.
bool read_ascend_databases(const std::filesystem::path& output, RankProfile* profile);

}  // namespace collective_ops
