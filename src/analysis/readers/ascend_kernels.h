// The kernels of an Ascend profile, summed by operator: kernel_details.csv, or the profiler's own database.
#pragma once

#include <string_view>

#include "analysis/profile.h"
#include "analysis/sqlite.h"

namespace collective_ops {

void read_kernel_details(std::string_view text, RankProfile* profile);
void read_kernel_tables(Database* database, RankProfile* profile);  // COMPUTE_TASK_INFO and TASK are there

}  // namespace collective_ops
