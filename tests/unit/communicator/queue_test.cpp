// Asynchronous calls: order, waiting, and what is still open when a rank leaves.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
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

// Notes in which order it is told, and makes a call of its own at the end.
class Listener final : public CallListener {
 public:
  Listener(Communicator& comm, std::vector<float>& data) : comm_(comm), data_(data) {}
  void before() override { told_ += 'b'; }
  void after(const Status& status) override {
    told_ += status.ok() ? 'a' : 'f';
    seen_ = data_[0];
  }
  void done() override {
    float one = 1.0f;
    if (comm_.all_reduce(&one, &one, 1, DataType::kFloat32, ReduceOp::kSum).ok() && one == 2.0f) told_ += 'd';
    ended_.store(true, std::memory_order_release);
  }
  const std::string& told() const {
    while (!ended_.load(std::memory_order_acquire)) std::this_thread::yield();
    return told_;
  }
  float seen() const { return seen_; }

 private:
  Communicator& comm_;
  std::vector<float>& data_;
  std::string told_;
  float seen_ = 0;
  std::atomic<bool> ended_{false};
};

TEST(Queue, ListenersAreToldByTheThreadThatRunsTheCall) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    for (const bool waits : {false, true}) {
      std::vector<float> data(100, 1.0f);
      const auto listener = std::make_shared<Listener>(comm, data);
      const auto work = comm.start(sum_of(data.data(), data.size()), listener);
      if (waits) EXPECT_TRUE(work->wait().ok());
      EXPECT_EQ(listener->told(), "bad");
      EXPECT_EQ(listener->seen(), 2.0f);
    }
  });
}

TEST(Queue, AbortEndsABlockedCallEverywhere) {
  ThreadRanks ranks(3);
  std::vector<float> data(10, 1.0f);
  const auto first = ranks[0].start(sum_of(data.data(), data.size()));
  ranks[1].abort("rank 1 was told to stop");
  const Status status = first->wait();
  EXPECT_EQ(status.code(), ErrorCode::kGroupBroken);
  EXPECT_NE(status.message().find("told to stop"), std::string::npos) << status.message();
  EXPECT_EQ(ranks[2].barrier().code(), ErrorCode::kGroupBroken);
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
