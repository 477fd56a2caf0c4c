#include "bootstrap/meeting_place.h"

#include <cstdlib>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/address.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/launch.h"
#include "bootstrap/rank_table.h"

namespace collective_ops {
namespace {

using ::testing::HasSubstr;

TEST(Address, TextsOfAllKinds) {
  for (const char* text : {"10.0.0.1", "fd77::1", "::1", "127.0.0.1"}) {
    auto address = SocketAddress::parse(text, 80);
    ASSERT_TRUE(address.ok());
    EXPECT_EQ(address->host(), text);
  }
  EXPECT_EQ(SocketAddress::parse("[fd77::1]", 80).value().with_port(), "[fd77::1]:80");
  EXPECT_EQ(SocketAddress::parse("10.0.0.1", 80).value().with_port(), "10.0.0.1:80");
  EXPECT_EQ(SocketAddress::parse("fe80::1%lo", 80).value().host(), "fe80::1%lo");
  EXPECT_TRUE(SocketAddress::parse("fe80::1%lo").value().is_link_local());
  EXPECT_TRUE(SocketAddress::parse("127.0.1.1").value().is_loopback());
  EXPECT_FALSE(SocketAddress::parse("::ffff:10.0.0.1").value().is_loopback());
  EXPECT_EQ(SocketAddress::parse("::ffff:10.0.0.1").value().host(), "10.0.0.1");
  for (const char* text :
       {"", "node1", "10.0.0", "10.0.0.1:80", "fe80::1%nosuch", "[10.0.0.1", "1.2.3.4.5"}) {
    EXPECT_FALSE(SocketAddress::parse(text).ok()) << text;
  }
}

TEST(Interfaces, Patterns) {
  EXPECT_TRUE(interface_matches("eth", "eth0"));
  EXPECT_TRUE(interface_matches("ib,eth", "eth1"));
  EXPECT_FALSE(interface_matches("=eth", "eth0"));
  EXPECT_TRUE(interface_matches("=eth0,eth1", "eth1"));
  EXPECT_FALSE(interface_matches("^docker,lo", "docker0"));
  EXPECT_TRUE(interface_matches("^docker,lo", "eth0"));
  EXPECT_FALSE(interface_matches("^=eth0", "eth0"));
  EXPECT_TRUE(interface_matches("^=eth0", "eth00"));
}

TEST(Interfaces, Ports) {
  const auto ports = [](const char* name, const char* value) {
    ::setenv(name, value, 1);
    auto result = own_ports();
    ::unsetenv(name);
    return result;
  };
  EXPECT_THAT(own_ports().value(), ::testing::ElementsAre(0));
  EXPECT_THAT(ports("HCCL_HOST_SOCKET_PORT_RANGE", "60000-60002,61000").value(),
              ::testing::ElementsAre(60000, 60001, 60002, 61000));
  EXPECT_THAT(ports("HCCL_HOST_SOCKET_PORT_RANGE", "auto").value(), ::testing::ElementsAre(0));
  EXPECT_EQ(ports("HCCL_IF_BASE_PORT", "60000").value().size(), 32u);
  EXPECT_EQ(ports("HCCL_IF_BASE_PORT", "65520").value().back(), 65535);
  for (const char* bad : {"x", "5-4", "80", "60000-70000", ",", "60000-", "-1", "1024-65535"}) {
    EXPECT_FALSE(ports("HCCL_HOST_SOCKET_PORT_RANGE", bad).ok()) << bad;
  }
  EXPECT_FALSE(ports("HCCL_IF_BASE_PORT", "65521").ok());
}

TEST(Launch, FirstHostOfAList) {
  EXPECT_EQ(first_host("node[01-04,07],other"), "node01");
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_host("rack[3,5]-node[2-9]"), "rack3-node2");
  EXPECT_EQ(first_host("x[3"), "x3");
  EXPECT_EQ(first_host(""), "");
}

using Variables = std::map<std::string, std::string, std::less<>>;
Variable given(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
}

TEST(Launch, EveryLauncherIsKnown) {
  const Variables launchers[] = {
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}},
      {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
      {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}},
      {{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NUM_NODES", "2"}}};
  for (const Variables& variables : launchers) {
    auto found = find_launched(given(variables));
    ASSERT_TRUE(found.ok() && found.value());
    EXPECT_EQ((*found)->rank, 3);
    EXPECT_EQ((*found)->world_size, 4);
    EXPECT_TRUE((*found)->on_several_hosts());
    EXPECT_FALSE((*found)->on_one_host());
  }
  auto msrun = find_launched(given({{"RANK_ID", "3"}, {"RANK_SIZE", "4"}}));
  ASSERT_TRUE(msrun.ok() && msrun.value());
  EXPECT_FALSE((*msrun)->on_several_hosts());
  EXPECT_FALSE((*msrun)->on_one_host());
  EXPECT_FALSE(find_launched(given({})).value());
  EXPECT_FALSE(find_launched(given({{"RANK", "4"}, {"WORLD_SIZE", "4"}})).ok());
}

TEST(Launch, WhereRankZeroIs) {
  auto root = find_root_place(given({{"MASTER_ADDR", "node1"}, {"SLURM_STEP_NODELIST", "n[1-2]"}}));
  EXPECT_EQ((*root)->host, "node1");
  EXPECT_EQ((*root)->port, 29500);
  root = find_root_place(given({{"SLURM_STEP_NODELIST", "n[1-2]"}, {"SLURM_JOB_ID", "2147483647"}}));
  EXPECT_EQ((*root)->host, "n1");
  EXPECT_GE((*root)->port, 20000);
  EXPECT_LT((*root)->port, 30000);
  root = find_root_place(given({{"MS_SCHED_HOST", "s"}, {"MS_SCHED_PORT", "8118"}}));
  EXPECT_EQ((*root)->port, 8118);
  EXPECT_FALSE(find_root_place(given({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "65530"}})).ok());
  EXPECT_FALSE(find_root_place(given({})).value());
}

std::string problem_of(std::string_view table) {
  auto parsed = parse_rank_table(table);
  return parsed.ok() ? "none" : parsed.status().message();
}

TEST(RankTable, WhatIsWrongIsSaid) {
  const std::string one = R"({"version":"1.0","server_list":[{"server_id":"10.0.0.1","device":[{"rank_id":)";
  EXPECT_EQ(problem_of(one + R"(0}]}]})"), "none");
  EXPECT_THAT(problem_of(""), HasSubstr("no JSON object"));
  EXPECT_THAT(problem_of("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(problem_of("{}"), HasSubstr("version \"\""));
  EXPECT_THAT(problem_of(R"({"version":"1.0"})"), HasSubstr("server_list is missing"));
  EXPECT_THAT(problem_of(R"({"version":"2.0"})"), HasSubstr("rank_list is missing"));
  EXPECT_THAT(problem_of(R"({"group_list":[]})"), HasSubstr("group_list"));
  EXPECT_THAT(problem_of(R"({"version":"1.0","status":"initializing"})"), HasSubstr("still being written"));
  EXPECT_THAT(problem_of(one + R"(1}]}]})"), HasSubstr("rank_id 0 is missing"));
  EXPECT_THAT(problem_of(one + R"("x"}]}]})"), HasSubstr("server_list[0].device[0].rank_id \"x\""));
  EXPECT_THAT(problem_of(one + R"(0},{"rank_id":"0"}]}]})"), HasSubstr("another entry has the same"));
  EXPECT_THAT(problem_of(one + R"(0,"host_port":70000}]}]})"), HasSubstr("host_port 70000"));
  EXPECT_THAT(problem_of(R"({"version":"1.0","server_count":"2","server_list":[]})"),
              HasSubstr("server_count is \"2\", and 0 are listed"));
  EXPECT_THAT(read_rank_table("/no/such/table").status().message(), HasSubstr("/no/such/table"));
}

TEST(RankTable, RanksInAnyOrderWithTheirServersAndPorts) {
  auto table = parse_rank_table(R"({"version":"1.0","server_count":2,"server_list":[
      {"server_id":"b","host_ip":"10.0.0.2","device":[{"rank_id":"1","host_port":"4000"},{"rank_id":3}]},
      {"server_id":"10.0.0.1","device":[{"rank_id":2},{"rank_id":"0"}]}]})");
  ASSERT_TRUE(table.ok()) << table.status().message();
  EXPECT_EQ(table->servers, 2);
  ASSERT_EQ(table->ranks.size(), 4u);
  EXPECT_EQ(table->ranks[0].host, "10.0.0.1");
  EXPECT_EQ(table->ranks[1].host, "10.0.0.2");
  EXPECT_EQ(table->ranks[1].port, 4000);
  EXPECT_EQ(table->ranks[3].server, "b");
  EXPECT_FALSE(table->ranks[3].port);
}

}  // namespace
}  // namespace collective_ops
