// Tuning tables, the built-in one and a user's, and the plug-in.
#include "tuner/table.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <collective_ops/communicator.h>

#include "algorithms/algorithms.h"
#include "tuner/choose.h"

namespace collective_ops {
namespace {

using testing::HasSubstr;

const std::string kHead = "collective-ops tuning table 1\n";

std::string problem(const std::string& rows) {
  const auto table = Table::parse(kHead + rows, "t.txt");
  return std::string(table.status().message());
}

TEST(Table, FindsTheRowOfGroupAndSize) {
  const auto table = Table::parse(kHead +
                                      "all_reduce * 2 0 one_shot one_shot  # small\n"
                                      "all_reduce * 2 1024 direct two_shot\n"
                                      "all_reduce * 8 0 direct one_shot\n"
                                      "\n"
                                      "all_reduce 2 2 0 direct read\n",
                                  "t.txt");
  ASSERT_TRUE(table.ok()) << table.status().message();
  const auto at = [&](size_t element, int ranks, uint64_t bytes) {
    const TableRow* row = table.value().find(Collective::kAllReduce, element, ranks, bytes);
    return row == nullptr ? std::string() : row->shared + " " + row->unshared;
  };
  EXPECT_EQ(at(4, 2, 1023), "one_shot one_shot");
  EXPECT_EQ(at(4, 2, 1024), "direct two_shot");
  EXPECT_EQ(at(4, 1, 1 << 20), "direct two_shot");
  EXPECT_EQ(at(4, 3, 0), "direct one_shot");
  EXPECT_EQ(at(4, 100, 1 << 30), "direct one_shot");
  EXPECT_EQ(at(2, 2, 0), "direct read");
  EXPECT_EQ(table.value().find(Collective::kBroadcast, 4, 2, 0), nullptr);
  const auto again = Table::parse(table.value().text(), "again");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again.value().text(), table.value().text());
}

TEST(Table, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(std::string(Table::parse("", "t.txt").status().message()), HasSubstr("t.txt is empty"));
  EXPECT_THAT(std::string(Table::parse("tuning\n", "t.txt").status().message()),
              HasSubstr("line 1: expected \"collective-ops tuning table 1\""));
  EXPECT_THAT(problem("all_reduce * 2 0 direct\n"), HasSubstr("line 2: expected six words"));
  EXPECT_THAT(problem("#\nall_reduce * 2 0 direct pigeon\n"),
              HasSubstr("line 3: pigeon: there is no such plan"));
  EXPECT_THAT(problem("all_reduce * 2 0 read two_shot\n"), HasSubstr("read: there is no such plan"));
  EXPECT_THAT(problem("all_reduce * 2 0 direct direct\n"), HasSubstr("for private memory"));
  EXPECT_THAT(problem("send * 2 0 direct read\n"), HasSubstr("send: no such collective"));
  EXPECT_THAT(problem("all_reduce 9 2 0 direct read\n"), HasSubstr("9: expected bytes of an element"));
  EXPECT_THAT(problem("all_reduce * 0 0 direct read\n"), HasSubstr("0: expected a number of ranks"));
  EXPECT_THAT(problem("all_reduce * 2 -1 direct read\n"), HasSubstr("-1: expected bytes"));
  EXPECT_THAT(problem("all_reduce * 2 0 one_shot two_shot\n"), HasSubstr("one_shot for shared memory means"));
  EXPECT_THAT(problem("all_reduce * 2 9 direct read\nall_reduce * 2 9 direct read\n"),
              HasSubstr("line 3: rows have to rise"));
  EXPECT_EQ(Table::read("/nowhere/at/all").status().code(), ErrorCode::kSystem);
}

TEST(Table, TheBuiltInOneKnowsEveryCall) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == Collective::kBarrier) continue;
    for (const int ranks : {1, 2, 3, 4, 7, 8, 64, 1000}) {
      for (uint64_t bytes = 0; bytes < uint64_t{1} << 40; bytes = bytes * 7 + 1) {
        EXPECT_NE(builtin_table().find(algorithm.collective, 4, ranks, bytes), nullptr)
            << name_of(algorithm.collective) << " " << ranks << " " << bytes;
      }
    }
  }
}

class Choosing : public testing::Test {
 protected:
  void TearDown() override {
    unsetenv("COLLECTIVE_OPS_TUNING_TABLE");
    unsetenv("COLLECTIVE_OPS_TUNER_PLUGIN");
    unsetenv("COLLECTIVE_OPS_ALGORITHM");
    std::filesystem::remove(file_);
  }
  void write(const std::string& rows) {
    std::ofstream(file_) << kHead << rows;
    setenv("COLLECTIVE_OPS_TUNING_TABLE", file_.c_str(), 1);
  }
  static PlanNames names(const ChosenCall& call) {
    const auto forced = forced_by_environment();
    EXPECT_TRUE(forced.ok()) << forced.status().message();
    return choose(call, forced.value());
  }
  const std::string file_ = testing::TempDir() + "table." + std::to_string(getpid());
};

TEST_F(Choosing, ATableOverridesTheBuiltInOne) {
  const ChosenCall call{Collective::kAllGather, 512, 4, 4};
  EXPECT_EQ(names(call).eager, "one_shot");
  write("all_reduce * 4 8192 nhr nhr\nall_gather * 4 0 direct staged\nall_gather * 4 4096 ring ring\n");
  EXPECT_EQ(names({Collective::kAllReduce, 8192, 4, 4}).staged, "nhr");
  EXPECT_EQ(names({Collective::kAllReduce, 64 << 20, 4, 4}).staged, "two_shot") << "no room for that";
  EXPECT_EQ(names(call).eager, "");
  EXPECT_EQ(names(call).direct, "direct");
  EXPECT_EQ(names(call).staged, "staged");
  EXPECT_EQ(names({Collective::kAllGather, 1024, 4, 4}).staged, "ring") << "sizes are of all parts";
  EXPECT_EQ(names({Collective::kAllReduce, 64, 4, 4}).eager, "one_shot") << "nothing is said of it";
  setenv("COLLECTIVE_OPS_ALGORITHM", "nhr", 1);
  EXPECT_EQ(names(call).staged, "nhr") << "what is forced comes first";
}

TEST_F(Choosing, ATableThatCannotBeReadIsAnErrorOfTheConnection) {
  setenv("COLLECTIVE_OPS_TUNING_TABLE", "/nowhere/table.txt", 1);
  const auto forced = forced_by_environment();
  EXPECT_THAT(std::string(forced.status().message()), HasSubstr("/nowhere/table.txt cannot be read"));
}

TEST_F(Choosing, RanksThatHaveOtherTablesNoticeIt) {
  write("all_gather * 4 0 direct staged\n");
  const std::string first = forced_by_environment()->text();
  write("all_gather * 4 0 direct ring\n");
  EXPECT_NE(forced_by_environment()->text(), first);
}

TEST_F(Choosing, ThePluginChangesCosts) {
  const ChosenCall call{Collective::kAllReduce, 16 << 10, 4, 4};
  const ChosenCall gather{Collective::kGather, 64 << 10, 4, 4};
  EXPECT_EQ(names(call).direct, "direct");
  EXPECT_NE(names(gather).read, "");
  setenv("COLLECTIVE_OPS_TUNER_PLUGIN", EXAMPLE_PLUGIN, 1);
  EXPECT_EQ(names(call).eager, "one_shot");
  EXPECT_EQ(names(call).direct, "") << "on shared memory, too";
  EXPECT_EQ(names(gather).read, "") << "a thousand times as dear";
  EXPECT_EQ(names({Collective::kAllReduce, 4 << 20, 4, 4}).direct, "direct") << "it has nothing to say there";
}

TEST_F(Choosing, AFailingPluginLeavesTheTablesChoice) {
  Forced forced;
  forced.plugin = std::make_shared<const Plugin>(
      [](const collective_ops_tuner_call*, collective_ops_tuner_candidate* list, int count) {
        for (int i = 0; i < count; ++i) list[i].cost_ns = i;
        return 1;
      });
  const ChosenCall call{Collective::kAllReduce, 64, 4, 4};
  EXPECT_EQ(choose(call, forced).eager, choose(call, {}).eager);
}

TEST_F(Choosing, ThePluginSeesTheCallAndEveryCandidate) {
  static std::vector<std::string> seen;
  Forced forced;
  forced.plugin = std::make_shared<const Plugin>(
      [](const collective_ops_tuner_call* call, collective_ops_tuner_candidate* list, int count) {
        EXPECT_STREQ(call->collective, "reduce_scatter");
        EXPECT_EQ(call->bytes, 4u * 4096);
        EXPECT_EQ(call->element_size, 2u);
        EXPECT_EQ(call->ranks, 4);
        for (int i = 0; i < count; ++i) {
          EXPECT_GT(list[i].cost_ns, 0);
          seen.push_back(std::string(list[i].algorithm) + " " + list[i].path + " " +
                         (call->shared != 0 ? "shared " : "private ") + std::to_string(list[i].ordered));
        }
        return 0;
      });
  (void)choose({Collective::kReduceScatter, 4096, 2, 4}, forced);
  EXPECT_THAT(seen, testing::IsSupersetOf({"direct direct shared 1", "direct read private 1",
                                           "ring staged shared 0", "staged staged private 1"}));
}

TEST_F(Choosing, APluginThatCannotBeLoadedIsAnError) {
  setenv("COLLECTIVE_OPS_TUNER_PLUGIN", "/nowhere/plugin.so", 1);
  EXPECT_THAT(std::string(forced_by_environment().status().message()), HasSubstr("/nowhere/plugin.so"));
  setenv("COLLECTIVE_OPS_TUNER_PLUGIN", "libm.so.6", 1);
  EXPECT_THAT(std::string(forced_by_environment().status().message()),
              HasSubstr("no function collective_ops_tune_v1"));
}

// Whatever a table says, results are right.
TEST_F(Choosing, CallsByATableAreRight) {
  write(
      "all_reduce * 3 0 two_shot two_shot\n"
      "all_reduce * 3 100 direct one_shot\n"
      "all_reduce * 3 3000 tree tree\n"
      "all_reduce * 3 200000 direct read\n");
  constexpr int kRanks = 3;
  for (const size_t count :
       {size_t{1}, size_t{20}, size_t{100}, size_t{1000}, size_t{60000}, size_t{1000000}}) {
    auto comms = Communicator::create_for_threads(kRanks);
    ASSERT_TRUE(comms.ok()) << comms.status().message();
    std::vector<std::thread> threads;
    std::vector<std::string> results(kRanks);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<float> data(count, static_cast<float>(rank + 1));
        const Status status =
            (*comms)[rank]->all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum);
        const auto right = static_cast<size_t>(std::count(data.begin(), data.end(), 6.0F));
        results[rank] = status.ok() ? std::to_string(right) : std::string(status.message());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(results, testing::Each(std::to_string(count)));
  }
}

// A plug-in that answers differently on another rank is found before anything moves.
TEST_F(Choosing, RanksWhosePluginsDisagreeAreTold) {
  // It gives each thread, and so each rank, another answer.
  setenv("COLLECTIVE_OPS_TUNER_PLUGIN", FICKLE_PLUGIN, 1);
  auto comms = Communicator::create_for_threads(2);
  ASSERT_TRUE(comms.ok()) << comms.status().message();
  std::vector<std::thread> threads;
  std::vector<std::string> results(2);
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> data(100, 1.0F);
      const Status status = (*comms)[rank]->all_reduce(data.data(), data.data(), data.size(),
                                                       DataType::kFloat32, ReduceOp::kSum);
      results[rank] = std::string(status.message());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(results, testing::Contains(HasSubstr("COLLECTIVE_OPS_TUNER_PLUGIN")));
  for (const std::string& one : results) EXPECT_NE(one, "");
}

}  // namespace
}  // namespace collective_ops
