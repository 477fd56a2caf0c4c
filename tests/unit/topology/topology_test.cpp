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
  EXPECT_GT(machine.load_far_ns, machine.load_near_ns);
  EXPECT_GT(machine.store_far_ns, machine.store_near_ns);
  EXPECT_GT(machine.yield_ns, machine.signal_ns)
      << "a hand-over of the core costs more than a look at a line";
}

TEST(Topology, RanksAreSpreadOverHostsInOrder) {
  Topology machine = measured_defaults(8, 2);
  machine.hosts = 4;
  EXPECT_EQ(machine.ranks_of_host(), 2);
  EXPECT_EQ(machine.host_of(1), 0);
  EXPECT_EQ(machine.host_of(2), 1);
  EXPECT_EQ(machine.host_of(7), 3);
  EXPECT_FALSE(machine.oversubscribed());
}

TEST(Topology, NumbersAreSetByTheirNames) {
  Topology machine = measured_defaults(2, 2);
  for (const TopologyNumber& number : topology_numbers()) {
    EXPECT_GT(machine.*number.value, 0) << number.name;
    EXPECT_TRUE(set_number(machine, number.name, 12.5));
    EXPECT_EQ(machine.*number.value, 12.5) << number.name;
  }
  EXPECT_TRUE(set_number(machine, "link_bytes_per_ns", 5));
  EXPECT_EQ(machine.link.bytes_per_ns, 5);
  EXPECT_FALSE(set_number(machine, "pigeons", 1));
}

}  // namespace
}  // namespace collective_ops
