#include "topology/topology.h"

#include <gtest/gtest.h>

namespace collective_ops {
namespace {

TEST(Topology, MoreRanksThanCoresAreOversubscribed) {
  EXPECT_TRUE(measured_defaults(8, 2).oversubscribed());
  EXPECT_FALSE(measured_defaults(2, 2).oversubscribed());
}

TEST(Topology, DefaultsKeepTheProportionsOfMachines) {
  const Topology machine = measured_defaults(4, 2);
  EXPECT_GT(machine.reduce_bytes_per_ns, 0);
  EXPECT_GT(machine.copy_bytes_per_ns, machine.memory_bytes_per_ns) << "the cache is faster than memory";
  EXPECT_GT(machine.yield_ns, machine.signal_ns)
      << "a hand-over of the core costs more than a look at a line";
}

}  // namespace
}  // namespace collective_ops
