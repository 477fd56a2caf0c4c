// How many cores this process may really use: affinity mask and cgroup quota, not the machine's count.
#pragma once

namespace collective_ops::shm {

// At least 1. cgroup v1 (cpu.cfs_quota_us) and v2 (cpu.max), whose files are read in every call, unless affinity
// alone leaves fewer cores than are `wanted`.
int usable_cores(int wanted);

}  // namespace collective_ops::shm
