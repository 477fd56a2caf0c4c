#include "transport/shm/cores.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include <sched.h>

namespace collective_ops::shm {
namespace {

// The whole cores of a quota, or a large number where there is none.
int cores_of(double quota, double period) {
  if (quota <= 0 || period <= 0) return 1 << 20;
  return std::max(1, static_cast<int>(quota / period));
}

int quota_in(const std::string& directory) {
  if (std::ifstream file(directory + "/cpu.max"); file) {
    std::string quota;
    double period = 0;
    if (file >> quota >> period && quota != "max") return cores_of(std::atof(quota.c_str()), period);
  }
  std::ifstream quota_file(directory + "/cpu.cfs_quota_us");
  std::ifstream period_file(directory + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (quota_file >> quota && period_file >> period) return cores_of(quota, period);
  return 1 << 20;
}

// The tightest quota from this process's cgroup up to the root of each hierarchy.
int quota_cores() {
  int cores = 1 << 20;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string row; std::getline(groups, row);) {
    const size_t first = row.find(':');
    const size_t second = row.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = row.substr(first + 1, second - first - 1);
    std::string root;
    if (controllers.empty()) {
      root = "/sys/fs/cgroup";
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      root = "/sys/fs/cgroup/" + controllers;
    } else {
      continue;
    }
    for (std::string path = row.substr(second + 1); !path.empty(); path.erase(path.rfind('/'))) {
      cores = std::min(cores, quota_in(root + path));
      if (path.rfind('/') == std::string::npos) break;
    }
    cores = std::min(cores, quota_in(root));
  }
  return cores;
}

}  // namespace

int usable_cores(int wanted, std::span<const pid_t> pids) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  int cores = 0;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) cores = CPU_COUNT(&mask);
  for (size_t i = 0; i < pids.size() && cores < wanted; ++i) {
    cpu_set_t other;
    if (sched_getaffinity(pids[i], sizeof(other), &other) != 0) continue;
    CPU_OR(&mask, &mask, &other);
    cores = CPU_COUNT(&mask);
  }
  if (cores <= 0) cores = static_cast<int>(std::thread::hardware_concurrency());
  if (cores < wanted) return std::max(1, cores);
  return std::max(1, std::min(cores, quota_cores()));
}

}  // namespace collective_ops::shm
