#include "host.h"

#include <arpa/inet.h>
#include <hwloc.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>

#include <fmt/format.h>

namespace collective_ops::topo {
namespace {

using Topology = std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)>;

int index_above(hwloc_topology_t topology, hwloc_obj_t object, hwloc_obj_type_t type) {
  const hwloc_obj_t found = hwloc_get_ancestor_obj_by_type(topology, type, object);
  return found != nullptr ? static_cast<int>(found->logical_index) : 0;
}

std::vector<int> numbers(hwloc_const_bitmap_t set) {
  std::vector<int> result;
  for (int i = hwloc_bitmap_first(set); i >= 0; i = hwloc_bitmap_next(set, i)) result.push_back(i);
  return result;
}

int numa_of(hwloc_topology_t topology, int processor) {
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    if (hwloc_bitmap_isset(node->cpuset, static_cast<unsigned>(processor)))
      return static_cast<int>(node->os_index);
  }
  return 0;
}

void read_processors(hwloc_topology_t topology, Host& host) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  hwloc_obj_t unit = nullptr;
  while ((unit = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, unit)) != nullptr) {
    Processor processor;
    processor.number = static_cast<int>(unit->os_index);
    processor.core = index_above(topology, unit, HWLOC_OBJ_CORE);
    processor.socket = index_above(topology, unit, HWLOC_OBJ_PACKAGE);
    processor.numa_node = numa_of(topology, processor.number);
    processor.allowed = CPU_ISSET(unit->os_index, &mine) &&
                        hwloc_bitmap_isset(hwloc_topology_get_allowed_cpuset(topology), unit->os_index);
    host.processors.push_back(processor);
  }
  std::sort(host.processors.begin(), host.processors.end(),
            [](const Processor& a, const Processor& b) { return a.number < b.number; });
}

void read_memory(hwloc_topology_t topology, Host& host) {
  for (const hwloc_obj_type_t type :
       {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L4CACHE}) {
    hwloc_obj_t cache = nullptr;
    while ((cache = hwloc_get_next_obj_by_type(topology, type, cache)) != nullptr) {
      host.caches.push_back(
          {static_cast<int>(cache->attr->cache.depth), cache->attr->cache.size, numbers(cache->cpuset)});
    }
  }
  hwloc_obj_t node = nullptr;
  while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr) {
    host.numa_nodes.push_back({static_cast<int>(node->os_index), node->attr->numanode.local_memory});
  }
}

int64_t speed_of(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  int64_t megabits = -1;
  return file >> megabits && megabits > 0 ? megabits : -1;
}

std::vector<Interface> read_interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  std::map<std::string, Interface> found;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    Interface& interface = found[entry->ifa_name];
    interface.name = entry->ifa_name;
    interface.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
    interface.megabits = speed_of(interface.name);
    if (entry->ifa_addr == nullptr) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    const int family = entry->ifa_addr->sa_family;
    const void* address = nullptr;
    if (family == AF_INET) address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    if (family == AF_INET6) address = &reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
    if (address != nullptr && inet_ntop(family, address, text.data(), text.size()) != nullptr) {
      interface.addresses.emplace_back(text.data());
    }
  }
  freeifaddrs(first);
  std::vector<Interface> result;
  for (auto& [name, interface] : found) result.push_back(std::move(interface));
  return result;
}

}  // namespace

Result<Host> describe_host() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0)
    return Status(ErrorCode::kOutOfMemory, "hwloc has no memory to begin with");
  const Topology topology(raw, &hwloc_topology_destroy);
  // Those that a control group forbids count as well: they are shown, and not used.
  hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
  if (hwloc_topology_load(raw) != 0) {
    return Status(ErrorCode::kSystem, fmt::format("hwloc cannot read this host: {}", std::strerror(errno)));
  }
  Host host;
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  host.name = name.data();
  if (const hwloc_obj_t package = hwloc_get_obj_by_type(raw, HWLOC_OBJ_PACKAGE, 0); package != nullptr) {
    const char* model = hwloc_obj_get_info_by_name(package, "CPUModel");
    if (model != nullptr) host.processor = model;
  }
  read_processors(raw, host);
  read_memory(raw, host);
  host.interfaces = read_interfaces();
  return host;
}

}  // namespace collective_ops::topo
