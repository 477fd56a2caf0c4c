// What this host is made of, by hwloc and the system's list of network interfaces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collective_ops/status.h>

namespace collective_ops::topo {

struct Processor {
  int number = 0;  // the system's; cores with several threads have several processors
  int core = 0;
  int socket = 0;
  int numa_node = 0;
  bool allowed = true;  // by affinity and control group
};

struct Cache {
  int level = 0;
  uint64_t bytes = 0;
  std::vector<int> processors;
};

struct NumaNode {
  int number = 0;
  uint64_t bytes = 0;
};

struct Interface {
  std::string name;
  bool up = false;
  std::vector<std::string> addresses;
  int64_t megabits = -1;  // -1: it does not say
};

struct Host {
  std::string name;
  std::string processor;
  std::vector<Processor> processors;  // by number
  std::vector<Cache> caches;          // of data
  std::vector<NumaNode> numa_nodes;
  std::vector<Interface> interfaces;
};

// kSystem: hwloc could not read the host.
Result<Host> describe_host();

}  // namespace collective_ops::topo
