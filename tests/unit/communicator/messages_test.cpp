// Messages between two ranks: matching, order, sizes, started and blocking ones, beside collectives.
#include <numeric>
#include <thread>
#include <vector>

#include "thread_ranks.h"

namespace collective_ops {
namespace {

constexpr size_t kLarge = 1 << 20;  // elements that never fit a ring

std::vector<float> numbers(size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

Transfer send_of(const std::vector<float>& values, int to, int tag = 0) {
  return Transfer::send(values.data(), values.size(), DataType::kFloat32, to, tag);
}
Transfer receive_of(std::vector<float>& values, int from, int tag = 0) {
  return Transfer::receive(values.data(), values.size(), DataType::kFloat32, from, tag);
}

// How large messages travel: from the sender's memory, or through the ring.
class Messages : public testing::TestWithParam<const char*> {
 protected:
  Messages() : path_("COLLECTIVE_OPS_PATH", GetParam()) {}

 private:
  ScopedVariable path_;
};
INSTANTIATE_TEST_SUITE_P(Paths, Messages, testing::Values("auto", "staged"),
                         [](const auto& path) { return std::string(path.param); });

TEST_P(Messages, ArriveWhateverTheirSize) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& comm) {
    for (const size_t count : {0, 1, 9, 10, 11, 16, 17, 4000, 4096, 4097, 100'000, 3'000'001}) {
      std::vector<float> values = numbers(count, static_cast<float>(count % 100));
      if (comm.rank() == 0) {
        ASSERT_TRUE(comm.send(values.data(), count, DataType::kFloat32, 1, 7).ok()) << count;
      } else {
        std::vector<float> got(count, -1);
        const Status status = comm.recv(got.data(), count, DataType::kFloat32, 0, 7);
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_EQ(got, values) << count;
      }
    }
  });
  EXPECT_EQ(ranks[0].counters().sends, 12u);
  EXPECT_EQ(ranks[1].counters().receives, 12u);
  EXPECT_EQ(ranks[0].counters().sent_bytes, ranks[1].counters().received_bytes);
  EXPECT_EQ(ranks[0].counters().calls, 0u);
}

TEST_P(Messages, OfOneTagNeverOvertakeEachOther) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& comm) {
    // Small, large and medium ones in turn.
    const std::vector<size_t> counts = {3, 200'000, 1000, 1, 500'000, 4096};
    std::vector<std::shared_ptr<Work>> works;
    std::vector<std::vector<float>> values;
    for (int i = 0; i < 60; ++i) {
      const size_t count = counts[static_cast<size_t>(i) % counts.size()];
      values.push_back(comm.rank() == 0 ? numbers(count, static_cast<float>(i)) : std::vector<float>(count));
    }
    for (auto& vector : values) {
      const Transfer transfer = comm.rank() == 0 ? send_of(vector, 1) : receive_of(vector, 0);
      works.push_back(comm.start({&transfer, 1})[0]);
    }
    for (auto& work : works) ASSERT_TRUE(work->wait().ok());
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], numbers(values[i].size(), static_cast<float>(i))) << i;
  });
}

TEST_P(Messages, TagsAreTakenInAnyOrder) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& comm) {
    for (const size_t count : {size_t{4}, kLarge}) {
      if (comm.rank() == 0) {
        std::vector<std::vector<float>> values;
        std::vector<Transfer> sends;
        for (int tag = 0; tag < 8; ++tag) values.push_back(numbers(count, static_cast<float>(tag)));
        for (int tag = 0; tag < 8; ++tag) sends.push_back(send_of(values[static_cast<size_t>(tag)], 1, tag));
        ASSERT_TRUE(comm.exchange(sends).ok());
      } else {
        for (const int tag : {7, 0, 3, 6, 1, 5, 2, 4}) {
          std::vector<float> got(count);
          ASSERT_TRUE(comm.recv(got.data(), count, DataType::kFloat32, 0, tag).ok());
          ASSERT_EQ(got, numbers(count, static_cast<float>(tag)));
        }
      }
    }
  });
}

TEST_P(Messages, BothSidesSendFirst) {
  // 64 MB both ways, tags out of order, and nobody waits before all is started.
  ThreadRanks ranks(2);
  ranks.run([](Communicator& comm) {
    constexpr size_t kCount = 16 << 20;
    const int peer = 1 - comm.rank();
    constexpr int kOutstanding = 8;
    constexpr size_t kPart = kCount / kOutstanding;
    std::vector<std::vector<float>> out, in;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < kOutstanding; ++i) {
      out.push_back(numbers(kPart, static_cast<float>(1000 * comm.rank() + i)));
      in.emplace_back(kPart);
    }
    for (int i = 0; i < kOutstanding; ++i) {
      const Transfer transfer = send_of(out[static_cast<size_t>(i)], peer, i);
      works.push_back(comm.start({&transfer, 1})[0]);
    }
    for (int i = kOutstanding - 1; i >= 0; --i) {
      const Transfer transfer = receive_of(in[static_cast<size_t>(i)], peer, i);
      works.push_back(comm.start({&transfer, 1})[0]);
    }
    for (auto& work : works) ASSERT_TRUE(work->wait().ok());
    for (int i = 0; i < kOutstanding; ++i)
      ASSERT_EQ(in[static_cast<size_t>(i)], numbers(kPart, static_cast<float>(1000 * peer + i)));
  });
}

TEST_P(Messages, BlockingExchangeOfLargeOnesInARing) {
  ThreadRanks ranks(4);
  ranks.run([](Communicator& comm) {
    const int next = (comm.rank() + 1) % 4, before = (comm.rank() + 3) % 4;
    const std::vector<float> out = numbers(kLarge, static_cast<float>(comm.rank()));
    std::vector<float> in(kLarge);
    const Transfer both[] = {send_of(out, next), receive_of(in, before)};
    ASSERT_TRUE(comm.exchange(both).ok());
    ASSERT_EQ(in, numbers(kLarge, static_cast<float>(before)));
  });
}

TEST_P(Messages, ToOneself) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& comm) {
    for (const size_t count : {size_t{0}, size_t{5}, size_t{1000}, kLarge}) {
      const std::vector<float> out = numbers(count, 3);
      std::vector<float> in(count);
      const Transfer both[] = {send_of(out, comm.rank(), 2), receive_of(in, comm.rank(), 2)};
      ASSERT_TRUE(comm.exchange(both).ok());
      ASSERT_EQ(in, out);
      // Small ones are off the sender's hands at once.
      if (count > 1000) continue;
      ASSERT_TRUE(comm.send(out.data(), count, DataType::kFloat32, comm.rank()).ok());
      in.assign(count, -1);
      ASSERT_TRUE(comm.recv(in.data(), count, DataType::kFloat32).ok());
      ASSERT_EQ(in, out);
    }
  });
}

TEST_P(Messages, AnySourceTellsWhich) {
  ThreadRanks ranks(4);
  ranks.run([](Communicator& comm) {
    for (const size_t count : {size_t{2}, size_t{300'000}}) {
      ASSERT_TRUE(comm.barrier().ok());
      if (comm.rank() != 0) {
        const std::vector<float> out = numbers(count, static_cast<float>(comm.rank()));
        ASSERT_TRUE(comm.send(out.data(), count, DataType::kFloat32, 0, 5).ok());
        continue;
      }
      std::vector<int> seen(4);
      for (int i = 0; i < 3; ++i) {
        std::vector<float> in(count);
        if (i == 1) {
          const Transfer any = receive_of(in, kAnySource, 5);
          const auto work = comm.start({&any, 1})[0];
          ASSERT_TRUE(work->wait().ok());
          ASSERT_TRUE(work->received().has_value());
          ++seen[static_cast<size_t>(work->received()->source)];
          ASSERT_EQ(in, numbers(count, static_cast<float>(work->received()->source)));
          continue;
        }
        Received received;
        ASSERT_TRUE(comm.recv(in.data(), count, DataType::kFloat32, kAnySource, 5, &received).ok());
        ASSERT_EQ(received.tag, 5);
        ASSERT_EQ(received.count, count);
        ++seen[static_cast<size_t>(received.source)];
        ASSERT_EQ(in, numbers(count, static_cast<float>(received.source)));
      }
      ASSERT_EQ(seen, (std::vector<int>{0, 1, 1, 1}));
    }
  });
}

TEST_P(Messages, ShorterOnesWhereTheyAreWelcome) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& comm) {
    for (const size_t count : {size_t{0}, size_t{3}, size_t{50'000}}) {
      const std::vector<float> out = numbers(count, 1);
      std::vector<float> in(100'000, -1);
      if (comm.rank() == 0) {
        ASSERT_TRUE(comm.send(out.data(), count, DataType::kFloat32, 1).ok());
      } else {
        Received received;
        ASSERT_TRUE(comm.recv(in.data(), in.size(), DataType::kFloat32, 0, 0, &received).ok());
        ASSERT_EQ(received.count, count);
        ASSERT_TRUE(std::equal(out.begin(), out.end(), in.begin()));
        ASSERT_EQ(in[count], -1);
      }
    }
  });
}

TEST_P(Messages, EveryTypeIsBytes) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& comm) {
    for (int i = 0; i < kDataTypeCount; ++i) {
      const auto type = static_cast<DataType>(i);
      std::vector<uint8_t> bytes(33 * size_of(type));
      for (size_t k = 0; k < bytes.size(); ++k) bytes[k] = static_cast<uint8_t>(k * 7 + 1);
      if (comm.rank() == 0) {
        ASSERT_TRUE(comm.send(bytes.data(), 33, type, 1).ok());
      } else {
        std::vector<uint8_t> got(bytes.size());
        ASSERT_TRUE(comm.recv(got.data(), 33, type, 0).ok()) << name_of(type);
        ASSERT_EQ(got, bytes);
      }
    }
  });
}

TEST_P(Messages, GoOnWithoutAnyoneWaiting) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& comm) {
    const std::vector<float> out = numbers(kLarge, static_cast<float>(comm.rank()));
    std::vector<float> in(kLarge);
    const Transfer both[] = {send_of(out, 1 - comm.rank()), receive_of(in, 1 - comm.rank())};
    const auto works = comm.start(both);
    while (!works[0]->done() || !works[1]->done()) std::this_thread::yield();
    EXPECT_TRUE(works[1]->wait().ok());
    EXPECT_EQ(in, numbers(kLarge, static_cast<float>(1 - comm.rank())));
  });
}

TEST_P(Messages, CollectivesRunWhileTheyArePending) {
  ThreadRanks ranks(3);
  ranks.run([](Communicator& comm) {
    const int next = (comm.rank() + 1) % 3, before = (comm.rank() + 2) % 3;
    for (int round = 0; round < 10; ++round) {
      std::vector<float> in(100'000);
      const std::vector<float> out = numbers(in.size(), static_cast<float>(comm.rank()));
      const Transfer receive = receive_of(in, before, round);
      const auto receiving = comm.start({&receive, 1})[0];
      float sum = 1;
      ASSERT_TRUE(comm.all_reduce(&sum, &sum, 1, DataType::kFloat32, ReduceOp::kSum).ok());
      ASSERT_EQ(sum, 3);
      const Transfer send = send_of(out, next, round);
      const auto sending = comm.start({&send, 1})[0];
      ASSERT_TRUE(comm.barrier().ok());
      ASSERT_TRUE(receiving->wait().ok());
      ASSERT_TRUE(sending->wait().ok());
      ASSERT_EQ(in, numbers(in.size(), static_cast<float>(before)));
    }
  });
}

TEST_P(Messages, OfSeveralThreadsAtOnce) {
  // Each pair of threads has a tag; a further pair runs collectives.
  ThreadRanks ranks(2);
  ranks.run([](Communicator& comm) {
    std::vector<std::thread> threads;
    for (int tag = 0; tag < 3; ++tag) {
      threads.emplace_back([&comm, tag] {
        for (int i = 0; i < 100; ++i) {
          const size_t count = tag == 0 ? 1 : tag == 1 ? 3000 : 40'000;
          const std::vector<float> out = numbers(count, static_cast<float>(i + tag));
          std::vector<float> in(count);
          if (comm.rank() == 0) {
            ASSERT_TRUE(comm.send(out.data(), count, DataType::kFloat32, 1, tag).ok());
            ASSERT_TRUE(comm.recv(in.data(), count, DataType::kFloat32, 1, tag).ok());
          } else {
            ASSERT_TRUE(comm.recv(in.data(), count, DataType::kFloat32, 0, tag).ok());
            ASSERT_TRUE(comm.send(out.data(), count, DataType::kFloat32, 0, tag).ok());
          }
          ASSERT_EQ(in, out);
        }
      });
    }
    for (int i = 0; i < 100; ++i) {
      int32_t one = 1;
      ASSERT_TRUE(comm.all_reduce(&one, &one, 1, DataType::kInt32, ReduceOp::kSum).ok());
      ASSERT_EQ(one, 2);
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST_P(Messages, WaitWithALimitLetsThemGoOn) {
  ThreadRanks ranks(2);
  std::vector<float> in(10), out = numbers(10, 4);
  const Transfer receive = receive_of(in, 0);
  const auto work = ranks[1].start({&receive, 1})[0];
  const Status status = work->wait(std::chrono::milliseconds(5));
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_NE(status.message().find("goes on"), std::string::npos) << status.message();
  EXPECT_FALSE(work->received().has_value());
  ASSERT_TRUE(ranks[0].send(out.data(), 10, DataType::kFloat32, 1).ok());
  EXPECT_TRUE(work->wait().ok());
  EXPECT_EQ(in, out);
}

TEST_P(Messages, LeavingDeliversWhatWasStarted) {
  const std::vector<float> out = numbers(kLarge, 9);
  ThreadRanks ranks(2);
  const Transfer send = send_of(out, 1, 4);
  (void)ranks[0].start({&send, 1});
  std::thread leaver([&] { ranks.drop(0); });
  std::vector<float> in(kLarge);
  EXPECT_TRUE(ranks[1].recv(in.data(), kLarge, DataType::kFloat32, 0, 4).ok());
  EXPECT_EQ(in, out);
  leaver.join();
}

TEST_P(Messages, SmallOnesOfARankThatHasLeftAreStillThere) {
  ThreadRanks ranks(2);
  const std::vector<float> out = numbers(1000, 9);
  ASSERT_TRUE(ranks[0].send(out.data(), 1000, DataType::kFloat32, 1).ok());
  ASSERT_TRUE(ranks[0].send(out.data(), 3, DataType::kFloat32, 1).ok());
  ranks.drop(0);
  std::vector<float> in(1000);
  EXPECT_TRUE(ranks[1].recv(in.data(), 1000, DataType::kFloat32, 0).ok());
  EXPECT_EQ(in, out);
  EXPECT_TRUE(ranks[1].recv(in.data(), 3, DataType::kFloat32, kAnySource).ok());
}

TEST_P(Messages, ManySmallOnesThatNobodyAskedForYet) {
  // Both sides send more than the rings hold before either receives.
  ThreadRanks ranks(2);
  ranks.run([](Communicator& comm) {
    constexpr int kMessages = 3000;
    const int peer = 1 - comm.rank();
    for (int i = 0; i < kMessages; ++i) {
      const std::vector<int32_t> out(200, i);
      ASSERT_TRUE(comm.send(out.data(), out.size(), DataType::kInt32, peer, i % 3).ok());
    }
    for (int tag = 2; tag >= 0; --tag) {
      for (int i = tag; i < kMessages; i += 3) {
        std::vector<int32_t> in(200);
        ASSERT_TRUE(comm.recv(in.data(), in.size(), DataType::kInt32, peer, tag).ok());
        ASSERT_EQ(in, std::vector<int32_t>(200, i));
      }
    }
  });
}

}  // namespace
}  // namespace collective_ops
