// Asynchronous calls: order, waiting, and what is still open when a rank leaves.
#include <chrono>
#include <thread>
#include <vector>

#include "thread_ranks.h"

namespace collective_ops {
namespace {

Call sum_of(float* data, size_t count) {
  return {Collective::kAllReduce, data, data, count, DataType::kFloat32, ReduceOp::kSum};
}

TEST(Queue, StartedCallsRunInOrderAmongBlockingOnes) {
  ThreadRanks ranks(3);
  ranks.run([&](Communicator& comm) {
    for (int round = 0; round < 100; ++round) {
      std::vector<std::vector<float>> data(8, std::vector<float>(300, 1.0f));
      std::vector<std::shared_ptr<Work>> works;
      for (auto& vector : data) works.push_back(comm.start(sum_of(vector.data(), vector.size())));
      // Depends on the results of the ones before: 3 * 3 = 9.
      ASSERT_TRUE(
          comm.all_reduce(data[0].data(), data[0].data(), 300, DataType::kFloat32, ReduceOp::kSum).ok());
      for (auto& work : works) ASSERT_TRUE(work->wait().ok());
      ASSERT_EQ(data[0][299], 9.0f);
      ASSERT_EQ(data[7][299], 3.0f);
    }
  });
}

TEST(Queue, GoesOnWithoutAnyoneWaiting) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    std::vector<float> data(1000, 2.0f);
    const auto work = comm.start(sum_of(data.data(), data.size()));
    while (!work->done()) std::this_thread::yield();
    EXPECT_TRUE(work->wait().ok());
    EXPECT_EQ(data[999], 4.0f);
  });
}

TEST(Queue, WaitWithALimitLetsTheCallGoOn) {
  ThreadRanks ranks(2);
  std::vector<float> first(10, 1.0f), second(10, 2.0f);
  const auto work = ranks[0].start(sum_of(first.data(), 10));
  EXPECT_EQ(work->wait(std::chrono::milliseconds(5)).code(), ErrorCode::kTimeout);
  ASSERT_TRUE(ranks[1].all_reduce(second.data(), second.data(), 10, DataType::kFloat32, ReduceOp::kSum).ok());
  EXPECT_TRUE(work->wait().ok());
  EXPECT_EQ(first[9], 3.0f);
}

TEST(Queue, LeavingFinishesWhatWasStarted) {
  std::vector<float> first(10, 1.0f), second(10, 2.0f);
  {
    ThreadRanks ranks(2);
    (void)ranks[0].start(sum_of(first.data(), 10));
    std::thread other([&] {
      EXPECT_TRUE(
          ranks[1].all_reduce(second.data(), second.data(), 10, DataType::kFloat32, ReduceOp::kSum).ok());
    });
    ranks.drop(0);
    other.join();
  }
  EXPECT_EQ(first[0], 3.0f);
}

TEST(Queue, FailureOfAStartedCallIsItsStatus) {
  ThreadRanks ranks(2);
  uint8_t byte = 0;
  const Call bad{Collective::kAllReduce, &byte, &byte, 1, DataType::kFloat8E5M2, ReduceOp::kSum};
  const auto work = ranks[0].start(bad);
  EXPECT_EQ(work->wait().code(), ErrorCode::kUnsupportedType);
  EXPECT_EQ(work->wait().code(), ErrorCode::kUnsupportedType);
}

TEST(Queue, ManyThreadsOnOneRank) {
  // A group of one: order among threads does not matter, and each call must still be whole.
  ThreadRanks ranks(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&ranks, t] {
      for (int i = 0; i < 500; ++i) {
        float value = static_cast<float>(t * 1000 + i);
        float out = -1;
        const Call call{Collective::kAllReduce, &value, &out, 1, DataType::kFloat32, ReduceOp::kSum};
        const Status status = i % 3 == 0 ? ranks[0].start(call)->wait() : ranks[0].run(call);
        ASSERT_TRUE(status.ok());
        ASSERT_EQ(out, value);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace collective_ops
