// The machine a group of ranks runs on, as the cost of plans needs it: what moving bytes and waiting cost on
// the cores of a host, and the links between hosts. Bytes per nanosecond are GB/s.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace collective_ops {

// Between the ranks of two hosts.
struct HostLink {
  double latency_ns = 20'000;  // until a first byte arrives
  double bytes_per_ns = 1.25;  // of a host, each way, shared by its ranks: 10 Gbit/s
  double message_ns = 5'000;   // of either side's core, for each message
};

struct Topology {
  int ranks = 1;
  int cores = 1;  // of each host, that its ranks may use, all together
  int hosts = 1;  // the ranks are spread over them, the first ranks / hosts on the first
  HostLink link;

  // Nanoseconds per byte that one core loads or stores: near is what its own cache holds and nobody else has
  // written since, far what comes from the other cores or the cache that they share.
  double load_near_ns = 0;
  double load_far_ns = 0;
  double store_near_ns = 0;
  double store_far_ns = 0;
  double reduce_ns = 0;             // in addition, of each byte of each source of a reduction
  uint64_t cache_bytes = 0;         // of one core
  uint64_t shared_cache_bytes = 0;  // of a host
  double memory_bytes_per_ns = 0;   // what all cores of a host together can load and store beyond that

  double call_ns = 0;       // to begin and end a call
  double step_ns = 0;       // to begin one copy or reduction
  double signal_ns = 0;     // until a rank that spins on another core sees a signal
  double line_ns = 0;       // to load a signal that is there already
  double yield_ns = 0;      // until another rank that shares the core runs
  double read_call_ns = 0;  // of a system call that reads a peer's private memory,
  double read_byte_ns = 0;  // and of each of its bytes

  int ranks_of_host() const { return (ranks + hosts - 1) / hosts; }
  int host_of(int rank) const { return rank / ranks_of_host(); }
  bool oversubscribed() const { return ranks_of_host() > cores; }
};

// The numbers that a probe measures, by the names under which they are kept and shown.
struct TopologyNumber {
  std::string_view name;
  double Topology::*value;
  std::string_view unit;
  std::string_view meaning;
};
const std::vector<TopologyNumber>& topology_numbers();
// One of these, or "cache_bytes", "shared_cache_bytes", "link_latency_ns", "link_bytes_per_ns",
// "link_message_ns". False: there is no such number.
bool set_number(Topology& topology, std::string_view name, double value);

// Defaults from measurements on one x86 machine: right in proportion, not in absolute terms.
Topology measured_defaults(int ranks, int cores);

}  // namespace collective_ops
