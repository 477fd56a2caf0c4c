// What `collective-ops topo` reads of the host it is on, and measures between its processors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <set>

#include "topo/host.h"
#include "topo/links.h"

namespace collective_ops::topo {
namespace {

std::vector<int> affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> result;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(static_cast<size_t>(i), &set)) result.push_back(i);
  }
  return result;
}

TEST(Host, ProcessorsAreThoseOfTheSystem) {
  const auto host = describe_host();
  ASSERT_TRUE(host.ok()) << host.status().message();
  std::vector<int> allowed;
  std::set<int> numbers;
  for (const Processor& one : host->processors) {
    if (one.allowed) allowed.push_back(one.number);
    numbers.insert(one.number);
  }
  EXPECT_EQ(allowed, affinity());
  EXPECT_EQ(numbers.size(), host->processors.size());
}

TEST(Host, EveryProcessorHasItsPlaceAndCache) {
  const auto host = describe_host();
  ASSERT_TRUE(host.ok());
  std::set<int> nodes;
  for (const NumaNode& node : host->numa_nodes) {
    nodes.insert(node.number);
    EXPECT_GT(node.bytes, 0U);
  }
  for (const Processor& one : host->processors) EXPECT_TRUE(nodes.contains(one.numa_node)) << one.number;
  for (const Cache& cache : host->caches) {
    EXPECT_GE(cache.bytes, 4096U);
    EXPECT_FALSE(cache.processors.empty());
  }
}

TEST(Host, TheLoopbackInterfaceIsThere) {
  const auto host = describe_host();
  ASSERT_TRUE(host.ok());
  std::ifstream file("/sys/class/net/lo/flags");
  if (!file) GTEST_SKIP() << "no loopback here";
  for (const Interface& one : host->interfaces) {
    if (one.name == "lo") return;
  }
  FAIL() << "lo is missing";
}

TEST(Links, OfTwoProcessorsAndOfOneWithItself) {
  const std::vector<int> allowed = affinity();
  const auto link = measure_link(allowed.front(), allowed.back());
  ASSERT_TRUE(link.ok()) << link.status().message();
  const auto own = measure_link(allowed.front(), allowed.front());
  ASSERT_TRUE(own.ok()) << own.status().message();
  for (const auto& one : {link.value(), own.value()}) {
    if (!one) continue;  // a busy machine
    EXPECT_GT(one->latency_ns, 1);
    EXPECT_GT(one->forward_gbs, 0);
    EXPECT_GT(one->backward_gbs, 0);
  }
}

TEST(Links, AProcessorThatIsNotThereIsAnError) {
  const auto link = measure_link(affinity().front(), 1023);
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.status().code(), ErrorCode::kSystem);
  EXPECT_THAT(std::string(link.status().message()), testing::HasSubstr("1023"));
}

}  // namespace
}  // namespace collective_ops::topo
