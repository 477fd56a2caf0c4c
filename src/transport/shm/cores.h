// How many cores processes may really use: affinity mask and cgroup quota, not the machine's count.
#pragma once

#include <span>

#include <sys/types.h>

namespace collective_ops::shm {

// At least 1. cgroup v1 (cpu.cfs_quota_us) and v2 (cpu.max), whose files are read in every call, unless
// affinity alone leaves fewer cores than are `wanted`.
//
// `pids`: other processes that are meant, too; those that cannot be asked are left out. Ranks that are bound
// to a core each have all these cores together.
int usable_cores(int wanted, std::span<const pid_t> pids = {});

}  // namespace collective_ops::shm
