// Every case is measured by all ranks as threads: right results are found right, spoiled ones wrong.
#include "perf/rank_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace collective_ops::perf {
namespace {

constexpr int kRanks = 3;

// Runs `body(comm, rank)` on all ranks, and returns what each gave.
template <typename Body>
std::vector<std::string> on_ranks(Body body) {
  auto comms = Communicator::create_for_threads(kRanks);
  if (!comms.ok()) return {comms.status().message()};
  std::vector<std::string> results(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] { results[static_cast<size_t>(rank)] = body(*(*comms)[rank], rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::string run_case(Communicator& comm, const CaseSpec& spec) {
  auto made = RankCase::make(spec, comm.rank(), comm.world_size());
  if (!made.ok()) return made.status().message();
  if (!made->checkable()) return "not checkable";
  made->fill();
  if (Status status = comm.run(made->call()); !status.ok()) return status.message();
  return std::to_string(made->wrong());
}

constexpr auto kCollectives = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                               "reduce",     "gather",     "scatter",        "all_to_all"};

TEST(RankCase, EveryCollectiveIsRightInPlaceAndApartFromEveryRoot) {
  for (const char* collective : kCollectives) {
    for (const bool in_place : {true, false}) {
      for (int root = 0; root < kRanks; ++root) {
        for (const char* memory : {"shared", "private"}) {
          const CaseSpec spec{collective, "float32", "sum", memory, 3 * 4 * 77, root, in_place};
          EXPECT_THAT(on_ranks([&](Communicator& comm, int) { return run_case(comm, spec); }),
                      testing::Each("0"))
              << collective << " in place " << in_place << " root " << root << " " << memory;
        }
      }
    }
  }
}

TEST(RankCase, EveryTypeAndOperationIsRight) {
  for (int type = 0; type <= static_cast<int>(DataType::kFloat64); ++type) {
    for (const char* op : {"sum", "prod", "min", "max"}) {
      const std::string name(name_of(static_cast<DataType>(type)));
      const CaseSpec spec{"all_reduce", name, op, "shared", 1000, 0, false};
      EXPECT_THAT(on_ranks([&](Communicator& comm, int) { return run_case(comm, spec); }), testing::Each("0"))
          << name << " " << op;
    }
  }
}

// Of the rank whose result is changed alone.
TEST(RankCase, ASpoiledElementIsCounted) {
  for (const char* collective : kCollectives) {
    const auto results = on_ranks([&](Communicator& comm, int rank) -> std::string {
      auto made = RankCase::make({collective, "int32", "sum", "shared", 3 * 4 * 5}, rank, kRanks);
      if (!made.ok()) return made.status().message();
      made->fill();
      if (Status status = comm.run(made->call()); !status.ok()) return status.message();
      const bool has_result =
          rank == 0 || (std::string(collective) != "reduce" && std::string(collective) != "gather");
      if (Status status = comm.barrier(); !status.ok()) return status.message();
      if (has_result) static_cast<int32_t*>(made->call().recv)[2] += 1;
      return std::to_string(made->wrong()) + (has_result ? "" : " of none");
    });
    EXPECT_THAT(results, testing::Each(testing::AnyOf("1", "0 of none"))) << collective;
  }
}

// A reduction that leaves one rank out, or takes it twice, is noticed, whichever rank and operation.
TEST(RankCase, ARankLeftOutIsNoticed) {
  for (const char* op : {"sum", "prod", "min", "max"}) {
    for (const char* type : {"float32", "int8"}) {
      // Nothing is combined: what a rank of many keeps is its own part alone.
      auto made = RankCase::make({"all_reduce", type, op, "private", 64}, 1, kRanks);
      ASSERT_TRUE(made.ok());
      made->fill();
      EXPECT_GT(made->wrong(), 0U) << op << " " << type;
    }
  }
}

TEST(RankCase, WhatATypeCannotHoldIsNotChecked) {
  const auto checkable = [](const char* type, const char* op, int ranks) {
    return RankCase::make({"all_reduce", type, op, "private", 64}, 0, ranks).value().checkable();
  };
  EXPECT_TRUE(checkable("int8", "sum", 63));
  EXPECT_FALSE(checkable("int8", "sum", 64));
  EXPECT_TRUE(checkable("float16", "sum", 511));
  EXPECT_TRUE(checkable("bfloat16", "sum", 63));
  EXPECT_TRUE(checkable("int8", "prod", 1000));
  EXPECT_FALSE(checkable("float32", "avg", 2));
}

TEST(RankCase, WhatDoesNotExistIsNamed) {
  const auto text = [](const CaseSpec& spec) { return RankCase::make(spec, 0, 2).status().message(); };
  EXPECT_THAT(text({"all_to_one"}), testing::HasSubstr("all_to_one"));
  EXPECT_THAT(text({"all_reduce", "float32", "sum", "shared", 64, 2}), testing::HasSubstr("root 2"));
}

}  // namespace
}  // namespace collective_ops::perf
