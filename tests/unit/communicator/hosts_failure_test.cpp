// What goes wrong between hosts is told on every rank, with names, and soon.
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "thread_ranks.h"

namespace collective_ops {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr auto kSoon = std::chrono::seconds(20);

// Each rank's status of `body`, which runs on ranks of two hosts.
std::vector<Status> statuses_of(ThreadRanks& ranks, int size,
                                const std::function<Status(Communicator&)>& body) {
  std::vector<Status> statuses(static_cast<size_t>(size));
  ranks.run([&](Communicator& rank) { statuses[static_cast<size_t>(rank.rank())] = body(rank); });
  return statuses;
}

ConnectOptions limited(std::chrono::milliseconds timeout = kSoon) {
  ConnectOptions options;
  options.exec_timeout = timeout;
  return options;
}

Status sum(Communicator& rank, size_t count, DataType type = DataType::kFloat32,
           ReduceOp op = ReduceOp::kSum) {
  std::vector<double> data(count, 1);
  return rank.all_reduce(data.data(), data.data(), count, type, op);
}

TEST(FailureOverHosts, DifferentCallsAreNamedOnAllRanks) {
  const int hosts[] = {0, 0, 1, 1};
  for (const size_t count : {size_t{10}, size_t{100'000}}) {
    ThreadRanks ranks(4, limited(), hosts);
    // Both ranks of the second host differ from the first: nobody sees it but over the network.
    const auto statuses = statuses_of(ranks, 4, [&](Communicator& rank) {
      return sum(rank, count, rank.rank() < 2 ? DataType::kFloat32 : DataType::kInt32);
    });
    for (const Status& status : statuses) {
      EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
      EXPECT_THAT(status.message(), HasSubstr("ranks made different calls as call #1 of the group"));
      EXPECT_THAT(status.message(), HasSubstr("They differ in type"));
      EXPECT_THAT(status.message(), HasSubstr("float32"));
      EXPECT_THAT(status.message(), HasSubstr("int32"));
    }
    for (const Status& status : statuses_of(ranks, 4, [](Communicator& rank) { return rank.barrier(); }))
      EXPECT_EQ(status.code(), ErrorCode::kGroupBroken) << status.message();
  }
}

TEST(FailureOverHosts, DifferentCollectivesAndCounts) {
  const int hosts[] = {0, 1};
  ThreadRanks ranks(2, limited(), hosts);
  const auto other = statuses_of(ranks, 2, [&](Communicator& rank) {
    float data = 1;
    return rank.rank() == 0 ? rank.broadcast(&data, 1, DataType::kFloat32, 1) : sum(rank, 1);
  });
  for (const Status& status : other) {
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("They differ in collective"));
  }
  ThreadRanks again(2, limited(), hosts);
  const auto counts = statuses_of(again, 2, [&](Communicator& rank) { return sum(rank, rank.rank() + 5); });
  for (const Status& status : counts) EXPECT_THAT(status.message(), HasSubstr("They differ in count"));
}

TEST(FailureOverHosts, CountsOfPairsThatDisagree) {
  const int hosts[] = {0, 1};
  ThreadRanks ranks(2, limited(), hosts);
  const auto statuses = statuses_of(ranks, 2, [&](Communicator& rank) {
    const std::vector<size_t> to = {1, 3}, from = {rank.rank() == 0 ? 1u : 2u, rank.rank() == 0 ? 1u : 3u};
    std::vector<float> send(4), recv(8);
    return rank.all_to_all_v(send.data(), to, recv.data(), from, DataType::kFloat32);
  });
  EXPECT_EQ(statuses[1].code(), ErrorCode::kMismatch);
  EXPECT_THAT(statuses[1].message(), HasSubstr("rank 0 sends 12 bytes to rank 1, which expects 8 bytes"));
  // Rank 0 had all that it expected, and hears of it at its next call.
  const auto next = statuses_of(ranks, 2, [](Communicator& rank) { return rank.barrier(); });
  EXPECT_THAT(next[0].message(), HasSubstr("rank 0 sends 12 bytes to rank 1"));
}

TEST(FailureOverHosts, ACallThatIsRefusedOnOneHost) {
  const int hosts[] = {0, 0, 1, 1};
  ThreadRanks ranks(4, limited(), hosts);
  ASSERT_TRUE(statuses_of(ranks, 4, [](Communicator& rank) { return sum(rank, 10); })[0].ok());
  const auto statuses = statuses_of(ranks, 4, [&](Communicator& rank) {
    return sum(rank, 10, rank.rank() < 2 ? DataType::kFloat8E4M3 : DataType::kFloat32);
  });
  EXPECT_EQ(statuses[0].code(), ErrorCode::kUnsupportedType);
  EXPECT_EQ(statuses[1].code(), ErrorCode::kUnsupportedType);
  for (int rank : {2, 3}) {
    const Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("refused before it began"));
  }
}

TEST(FailureOverHosts, CallsThatAllRefuseLeaveTheGroupWhole) {
  const int hosts[] = {0, 0, 1};
  ThreadRanks ranks(3, limited(), hosts);
  for (int turn = 0; turn < 3; ++turn) {
    for (const Status& status :
         statuses_of(ranks, 3, [](Communicator& rank) { return sum(rank, 10, DataType::kFloat8E4M3); }))
      EXPECT_EQ(status.code(), ErrorCode::kUnsupportedType);
    for (const Status& status : statuses_of(ranks, 3, [](Communicator& rank) { return sum(rank, 100); }))
      EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(FailureOverHosts, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  const int hosts[] = {0, 0, 1, 1};
  ThreadRanks ranks(4, limited(std::chrono::milliseconds(200)), hosts);
  const auto statuses = statuses_of(
      ranks, 4, [&](Communicator& rank) { return rank.rank() == 3 ? Status() : sum(rank, 100'000); });
  for (int rank : {0, 1, 2}) {
    const Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_EQ(status.code(), ErrorCode::kTimeout) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("for rank 3"));
    EXPECT_THAT(status.message(), HasSubstr("call #1"));
  }
}

TEST(FailureOverHosts, ARankThatHasLeftIsNamed) {
  const int hosts[] = {0, 1, 1};
  ThreadRanks ranks(3, limited(), hosts);
  for (const Status& status : statuses_of(ranks, 3, [](Communicator& rank) { return sum(rank, 10); }))
    ASSERT_TRUE(status.ok()) << status.message();
  ranks.drop(0);
  std::vector<Status> statuses(3);
  std::vector<std::thread> threads;
  for (int rank : {1, 2})
    threads.emplace_back([&, rank] { statuses[static_cast<size_t>(rank)] = sum(ranks[rank], 10); });
  for (auto& thread : threads) thread.join();
  for (int rank : {1, 2}) {
    const Status& status = statuses[static_cast<size_t>(rank)];
    EXPECT_EQ(status.code(), ErrorCode::kPeerLost) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("rank 0"));
  }
}

TEST(FailureOverHosts, AnAbortEndsTheCallOnAllHosts) {
  const int hosts[] = {0, 0, 1, 1};
  ThreadRanks ranks(4, limited(), hosts);
  for (const Status& status : statuses_of(ranks, 4, [](Communicator& rank) { return sum(rank, 10); }))
    ASSERT_TRUE(status.ok());
  const auto statuses = statuses_of(ranks, 4, [&](Communicator& rank) {
    if (rank.rank() != 0) return sum(rank, 10);
    rank.abort("enough");
    return rank.barrier();
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), ErrorCode::kGroupBroken);
    EXPECT_THAT(status.message(), HasSubstr("enough"));
  }
}

}  // namespace
}  // namespace collective_ops
