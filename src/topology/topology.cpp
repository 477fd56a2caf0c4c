#include "topology/topology.h"

namespace collective_ops {

const std::vector<TopologyNumber>& topology_numbers() {
  static const std::vector<TopologyNumber> numbers = {
      {"load_near_ns", &Topology::load_near_ns, "ns/B", "loading what the core's cache holds"},
      {"load_far_ns", &Topology::load_far_ns, "ns/B", "loading what another core has written"},
      {"store_near_ns", &Topology::store_near_ns, "ns/B", "storing into the core's cache"},
      {"store_far_ns", &Topology::store_far_ns, "ns/B", "storing what another core holds"},
      {"reduce_ns", &Topology::reduce_ns, "ns/B", "adding, beside loading and storing"},
      {"memory_bytes_per_ns", &Topology::memory_bytes_per_ns, "GB/s", "memory, all cores together"},
      {"call_ns", &Topology::call_ns, "ns", "beginning and ending a call"},
      {"step_ns", &Topology::step_ns, "ns", "beginning a copy or a reduction"},
      {"signal_ns", &Topology::signal_ns, "ns", "hand-over between cores, one way"},
      {"line_ns", &Topology::line_ns, "ns", "looking at a signal of another core"},
      {"yield_ns", &Topology::yield_ns, "ns", "hand-over on one core, one way"},
      {"read_call_ns", &Topology::read_call_ns, "ns", "a read of a peer's private memory"},
      {"read_byte_ns", &Topology::read_byte_ns, "ns/B", "and each of its bytes"},
  };
  return numbers;
}

bool set_number(Topology& topology, std::string_view name, double value) {
  for (const TopologyNumber& one : topology_numbers()) {
    if (one.name == name) return topology.*one.value = value, true;
  }
  if (name == "cache_bytes") return topology.cache_bytes = static_cast<uint64_t>(value), true;
  if (name == "shared_cache_bytes") return topology.shared_cache_bytes = static_cast<uint64_t>(value), true;
  if (name == "link_latency_ns") return topology.link.latency_ns = value, true;
  if (name == "link_bytes_per_ns") return topology.link.bytes_per_ns = value, true;
  if (name == "link_message_ns") return topology.link.message_ns = value, true;
  return false;
}

Topology measured_defaults(int ranks, int cores) {
  return {
      .ranks = ranks,
      .cores = cores,
      .load_near_ns = 0.010,
      .load_far_ns = 0.072,
      .store_near_ns = 0.011,
      .store_far_ns = 0.042,
      .reduce_ns = 0.0015,
      .cache_bytes = uint64_t{2} << 20,
      .shared_cache_bytes = uint64_t{32} << 20,
      .memory_bytes_per_ns = 26.0,
      .call_ns = 106.0,
      .step_ns = 73.0,
      .signal_ns = 192.0,
      .line_ns = 24.0,
      .yield_ns = 1280.0,
      .read_call_ns = 1080.0,
      .read_byte_ns = 0.066,
  };
}

}  // namespace collective_ops
