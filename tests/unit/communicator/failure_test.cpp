// Wrong programs fail with the reason, on every rank, and never hang.
#include <chrono>
#include <vector>

#include "thread_ranks.h"

namespace collective_ops {
namespace {

TEST(Failure, MismatchNamesRanksAndFields) {
  ThreadRanks ranks(3);
  std::vector<Status> seen(3);
  ranks.run([&](Communicator& comm) {
    std::vector<float> data(2000, 1.0f);
    const size_t count = comm.rank() == 1 ? 2000 : 1000;
    seen[static_cast<size_t>(comm.rank())] =
        comm.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum);
  });
  for (const Status& status : seen) {
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
    EXPECT_EQ(status.message(), seen[0].message());
  }
  EXPECT_NE(seen[0].message().find("ranks 0,2: all_reduce of 1000 float32, op sum"), std::string::npos)
      << seen[0].message();
  EXPECT_NE(seen[0].message().find("rank 1: all_reduce of 2000 float32, op sum"), std::string::npos);
  EXPECT_NE(seen[0].message().find("differ in count"), std::string::npos);
}

struct Difference {
  const char* field;
  Call first;
  Call second;
};

class EveryField : public testing::TestWithParam<Difference> {};

TEST_P(EveryField, IsNoticed) {
  ThreadRanks ranks(2);
  std::vector<Status> seen(2);
  ranks.run([&](Communicator& comm) {
    std::vector<double> data(4096);
    Call call = comm.rank() == 0 ? GetParam().first : GetParam().second;
    call.send = call.recv = data.data();
    seen[static_cast<size_t>(comm.rank())] = comm.run(call);
    if (seen[static_cast<size_t>(comm.rank())].ok()) {
      // A root that had finished learns of it at its next call.
      seen[static_cast<size_t>(comm.rank())] = comm.barrier();
    }
  });
  for (const Status& status : seen) {
    EXPECT_TRUE(status.code() == ErrorCode::kMismatch || status.code() == ErrorCode::kGroupBroken)
        << status.message();
    EXPECT_NE(status.message().find(GetParam().field), std::string::npos) << status.message();
  }
}

const Call kSum{Collective::kAllReduce, nullptr, nullptr, 1000, DataType::kFloat32, ReduceOp::kSum};
Call changed(Call call, auto change) {
  change(call);
  return call;
}

INSTANTIATE_TEST_SUITE_P(
    Fields, EveryField,
    testing::Values(
        Difference{"type", kSum, changed(kSum, [](Call& c) { c.type = DataType::kInt32; })},
        Difference{"op", kSum, changed(kSum, [](Call& c) { c.op = ReduceOp::kMax; })},
        Difference{"count", kSum, changed(kSum, [](Call& c) { c.count = 3; })},
        Difference{"collective", kSum, changed(kSum, [](Call& c) { c.collective = Collective::kBroadcast; })},
        Difference{"collective", kSum, {Collective::kBarrier}},
        Difference{"root",
                   {Collective::kBroadcast, nullptr, nullptr, 100, DataType::kFloat32, ReduceOp::kSum, 0},
                   {Collective::kBroadcast, nullptr, nullptr, 100, DataType::kFloat32, ReduceOp::kSum, 1}},
        Difference{"count",
                   {Collective::kAllGather, nullptr, nullptr, 1, DataType::kInt8},
                   {Collective::kAllGather, nullptr, nullptr, 2, DataType::kInt8}}));

TEST(Failure, GroupStaysBroken) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    int32_t value = 0;
    EXPECT_FALSE(comm.all_reduce(&value, &value, 1, comm.rank() == 0 ? DataType::kInt32 : DataType::kUInt32,
                                 ReduceOp::kSum)
                     .ok());
    const Status next = comm.all_reduce(&value, &value, 1, DataType::kInt32, ReduceOp::kSum);
    EXPECT_EQ(next.code(), ErrorCode::kGroupBroken);
    EXPECT_NE(next.message().find("uint32"), std::string::npos) << next.message();
  });
}

TEST(Failure, RefusedAlikeLeavesTheGroupUsable) {
  ThreadRanks ranks(3);
  ranks.run([&](Communicator& comm) {
    uint8_t fp8[4] = {};
    for (int round = 0; round < 10; ++round) {
      const Status refused = comm.all_reduce(fp8, fp8, 4, DataType::kFloat8E4M3, ReduceOp::kSum);
      EXPECT_EQ(refused.code(), ErrorCode::kUnsupportedType);
      EXPECT_NE(refused.message().find("float8_e4m3"), std::string::npos);
    }
    int64_t value = comm.rank();
    ASSERT_TRUE(comm.all_reduce(&value, &value, 1, DataType::kInt64, ReduceOp::kSum).ok());
    EXPECT_EQ(value, 3);
  });
}

TEST(Failure, CallRefusedOnOneRankReachesTheOthers) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    std::vector<float> data(10);
    if (comm.rank() == 0) {
      EXPECT_EQ(comm.broadcast(data.data(), 10, DataType::kFloat32, 7).code(), ErrorCode::kInvalidArgument);
      const Status next = comm.barrier();
      EXPECT_FALSE(next.ok());
    } else {
      const Status status = comm.broadcast(data.data(), 10, DataType::kFloat32, 0);
      EXPECT_EQ(status.code(), ErrorCode::kMismatch);
      EXPECT_NE(status.message().find("rank 0: a call that was refused"), std::string::npos)
          << status.message();
    }
  });
}

TEST(Failure, DeadlineNamesTheLateRank) {
  ThreadRanks ranks(2);
  float value = 0;
  const Status status = ranks[0].run({.collective = Collective::kAllReduce,
                                      .send = &value,
                                      .recv = &value,
                                      .count = 1,
                                      .type = DataType::kFloat32,
                                      .timeout = std::chrono::milliseconds(30)});
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_NE(status.message().find("for rank 1, which has made no call yet"), std::string::npos)
      << status.message();
  EXPECT_EQ(ranks[1].barrier().code(), ErrorCode::kGroupBroken);
}

TEST(Failure, ARankThatLeftIsNamed) {
  ThreadRanks ranks(2);
  ranks.drop(1);
  const Status status = ranks[0].barrier();
  EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
  EXPECT_NE(status.message().find("rank 1 left the group before its first call"), std::string::npos)
      << status.message();
}

TEST(Failure, ARankMayLeaveOnceItsPartIsDone) {
  for (int round = 0; round < 50; ++round) {
    ThreadRanks ranks(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&ranks, rank] {
        std::vector<float> data(20000, 1.0f);
        EXPECT_TRUE(ranks[rank]
                        .all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum)
                        .ok());
        EXPECT_EQ(data[19999], 3.0f);
        ranks.drop(rank);
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

TEST(Failure, InterruptCheckEndsAWait) {
  ConnectOptions options;
  options.interrupted = [] { return Status(ErrorCode::kInterrupted, "interrupted by the user"); };
  ThreadRanks ranks(2, options);
  EXPECT_EQ(ranks[0].barrier().code(), ErrorCode::kInterrupted);
  EXPECT_EQ(ranks[1].barrier().code(), ErrorCode::kGroupBroken);
}

TEST(Failure, OverlappingBuffersAreRefusedAlike) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    std::vector<float> data(200, 1.0f);
    const size_t own = static_cast<size_t>(comm.rank()) * 100;
    EXPECT_EQ(comm.all_gather(data.data() + 50, data.data(), 100, DataType::kFloat32).code(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(comm.all_reduce(data.data(), data.data() + 1, 100, DataType::kFloat32, ReduceOp::kSum).code(),
              ErrorCode::kInvalidArgument);
    // A rank's own part of the whole is in place.
    EXPECT_TRUE(comm.all_gather(data.data() + own, data.data(), 100, DataType::kFloat32).ok());
    EXPECT_TRUE(
        comm.reduce_scatter(data.data(), data.data() + own, 100, DataType::kFloat32, ReduceOp::kSum).ok());
    EXPECT_EQ(data[own], 2.0f);
  });
}

TEST(Failure, RefusedByTheCallerCountsAsACall) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    float value = 1;
    comm.refuse_call();  // alike on both: they stay in step
    EXPECT_TRUE(comm.all_reduce(&value, &value, 1, DataType::kFloat32, ReduceOp::kSum).ok());
    if (comm.rank() == 0) {
      comm.refuse_call();
    } else {
      EXPECT_EQ(comm.all_reduce(&value, &value, 1, DataType::kFloat32, ReduceOp::kSum).code(),
                ErrorCode::kMismatch);
    }
  });
}

TEST(Failure, RootsThatWaitForNobodyAreComparedAtTheNextCall) {
  ThreadRanks ranks(2);
  std::vector<Status> seen(2);
  ranks.run([&](Communicator& comm) {
    float value = 1;
    EXPECT_TRUE(comm.broadcast(&value, 1, DataType::kFloat32, comm.rank()).ok());
    seen[static_cast<size_t>(comm.rank())] = comm.barrier();
  });
  for (const Status& status : seen) {
    EXPECT_EQ(status.code(), ErrorCode::kMismatch);
    EXPECT_NE(status.message().find("as call #1"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("differ in root"), std::string::npos) << status.message();
  }
}

TEST(Failure, CallFromWithinACallIsRefused) {
  Communicator* self = nullptr;
  Status nested;
  ConnectOptions options;
  options.interrupted = [&] {
    if (self != nullptr && nested.ok()) nested = self->barrier();
    return Status(ErrorCode::kInterrupted, "enough");
  };
  ThreadRanks ranks(2, options);
  self = &ranks[0];
  EXPECT_EQ(ranks[0].barrier().code(), ErrorCode::kInterrupted);
  EXPECT_EQ(nested.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(nested.message().find("already inside a call"), std::string::npos) << nested.message();
}

TEST(Failure, NullBufferIsRefused) {
  ThreadRanks ranks(1);
  EXPECT_EQ(ranks[0].all_reduce(nullptr, nullptr, 4, DataType::kFloat32, ReduceOp::kSum).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(ranks[0].all_reduce(nullptr, nullptr, 0, DataType::kFloat32, ReduceOp::kSum).ok());
}

TEST(Failure, UnknownForcedAlgorithmIsSaid) {
  const ScopedVariable algorithm("COLLECTIVE_OPS_ALGORITHM", "pigeons");
  const auto made = Communicator::create_for_threads(1);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(made.status().message().find("\"pigeons\": expected auto, arrival, one_shot"), std::string::npos)
      << made.status().message();
}

}  // namespace
}  // namespace collective_ops
