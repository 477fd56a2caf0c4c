#include "bootstrap/cluster.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "bootstrap/door.h"
#include "bootstrap/meeting_place.h"
#include "ranks.h"

namespace collective_ops {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kSecond = 1'000'000'000;

// Sixteen ports in a row, of which the first was free just now.
std::vector<uint16_t> some_ports() {
  auto door = Door::open({{0}, {}, AF_UNSPEC}, 0);
  const uint16_t first = std::min<uint16_t>((*door)->port(), 65000);
  std::vector<uint16_t> ports(16);
  std::iota(ports.begin(), ports.end(), first);
  return ports;
}

class ClusterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("COLLECTIVE_OPS_SECRET", "a secret of this test alone", 1);
    meeting_.root_host = "127.0.0.1";
    meeting_.root_ports = some_ports();
    meeting_.origin = "the test";
  }
  void TearDown() override { ::unsetenv("COLLECTIVE_OPS_SECRET"); }

  Result<std::unique_ptr<Cluster>> join(int rank, int world_size, double seconds = 20) const {
    ClusterOptions options;
    options.rank = rank;
    options.world_size = world_size;
    options.job = "test";
    options.deadline_ns = monotonic_ns() + static_cast<int64_t>(seconds * 1e9);
    return Cluster::join(meeting_, options);
  }

  void start(int rank, int world_size, const std::function<std::string(Cluster&)>& body,
             double seconds = 20) {
    ranks_.start([=, this] {
      auto cluster = join(rank, world_size, seconds);
      if (!cluster.ok())
        return std::string(name_of(cluster.status().code())) + ": " + cluster.status().message();
      return body(**cluster);
    });
  }

  MeetingPlace meeting_;
  Ranks ranks_;
};

std::string members(Cluster& cluster) {
  std::string text;
  for (const auto& member : cluster.members()) {
    text += fmt::format("{}:{}:{} ", member.rank, member.host, member.local_rank);
  }
  return text + std::to_string(cluster.local_size());
}

TEST_F(ClusterTest, AllLearnWhoAndWhereAllAre) {
  for (const int size : {1, 2, 5, 6, 22}) {
    SetUp();
    Ranks ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.start([=, this] {
        auto cluster = join(rank, size);
        if (!cluster.ok()) return cluster.status().message();
        return members(**cluster) + (*cluster)->local_job();
      });
    }
    const std::string first = ranks.answer(0);
    EXPECT_THAT(first, StartsWith("0:0:0 "));
    EXPECT_THAT(first, HasSubstr(fmt::format("{}:0:{} {}cluster ", size - 1, size - 1, size)));
    for (int rank = 1; rank < size; ++rank) EXPECT_EQ(ranks.answer(static_cast<size_t>(rank)), first);
  }
}

TEST_F(ClusterTest, AnyTwoConnectWhoeverAsksFirst) {
  constexpr int kSize = 4;
  for (int rank = 0; rank < kSize; ++rank) {
    start(rank, kSize, [](Cluster& cluster) {
      std::string heard;
      const int64_t deadline = monotonic_ns() + 10 * kSecond;
      for (uint64_t channel = 0; channel < 2; ++channel) {
        for (int peer = 0; peer < kSize; ++peer) {
          if (peer == cluster.rank()) continue;
          // Lower ranks ask on even channels, higher ones on odd.
          const bool asks = (peer > cluster.rank()) == (channel % 2 == 0);
          auto socket = asks ? cluster.connect(peer, Purpose::kData, channel, deadline)
                             : cluster.accept(peer, Purpose::kData, channel, deadline);
          if (!socket.ok()) return socket.status().message();
          const char mine = static_cast<char>('0' + cluster.rank());
          if (::send(socket->get(), &mine, 1, MSG_NOSIGNAL) != 1) return std::string("no send");
          char theirs = 0;
          pollfd ready{socket->get(), POLLIN, 0};
          ::poll(&ready, 1, 10'000);
          if (::recv(socket->get(), &theirs, 1, 0) != 1) return std::string("nothing came");
          heard += theirs;
        }
      }
      return heard;
    });
  }
  EXPECT_EQ(ranks_.answer(0), "123123");
  EXPECT_EQ(ranks_.answer(1), "023023");
  EXPECT_EQ(ranks_.answer(2), "013013");
  EXPECT_EQ(ranks_.answer(3), "012012");
}

TEST_F(ClusterTest, MissingRanksAreNamedOnAllThatWait) {
  for (const int rank : {0, 2, 4}) start(rank, 5, members, rank == 2 ? 1.0 : 1.5);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(ranks_.answer(i), AllOf(StartsWith("rendezvous: "), HasSubstr("ranks 1 and 3 did not come")));
  }
}

TEST_F(ClusterTest, ARankWithoutRankZeroSaysWhatItTried) {
  start(1, 2, members, 0.5);
  EXPECT_THAT(ranks_.answer(0),
              AllOf(StartsWith("rendezvous: "), HasSubstr("did not find rank 0 at the test"),
                    HasSubstr("connection refused"), HasSubstr("16 ports")));
}

TEST_F(ClusterTest, DifferentWorldSizesAndSecondClaimsAreTold) {
  start(0, 3, members);
  start(1, 4, members);
  start(2, 4, members);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_THAT(ranks_.answer(i), AllOf(StartsWith("rendezvous: "), HasSubstr("WORLD_SIZE")));
  }
  meeting_.root_ports = some_ports();
  Ranks second;
  for (const int rank : {0, 1, 1}) {
    second.start([=, this] {
      auto cluster = join(rank, 3);
      return std::string(name_of(cluster.status().code())) + cluster.status().message();
    });
  }
  for (size_t i = 0; i < 3; ++i)
    EXPECT_THAT(second.answer(i), AllOf(StartsWith("duplicate_rank"), HasSubstr("both are rank 1")));
}

TEST_F(ClusterTest, ADeathIsNoticedByAll) {
  constexpr int kSize = 7;
  for (int rank = 0; rank < kSize; ++rank) {
    start(rank, kSize, [](Cluster& cluster) {
      if (cluster.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        ::_exit(3);
      }
      auto socket = cluster.accept(0, Purpose::kData, 0, monotonic_ns() + 10 * kSecond);
      return std::string(name_of(socket.status().code())) + " " + socket.status().message();
    });
  }
  for (const size_t rank : {0, 2, 3, 4, 5, 6}) {
    EXPECT_THAT(ranks_.answer(rank), AllOf(StartsWith("peer_lost rank 1 on "), HasSubstr("has died")));
  }
}

TEST_F(ClusterTest, WhoLeavesIsNoLossAndWordsReachAll) {
  constexpr int kSize = 6;
  for (int rank = 0; rank < kSize; ++rank) {
    start(rank, kSize, [](Cluster& cluster) {
      if (cluster.rank() == 5) {
        cluster.leave();
        ::_exit(0);
      }
      for (int other = 0; other < 5; ++other) {
        if (other == cluster.rank()) continue;
        const auto meet = other < cluster.rank() ? &Cluster::accept : &Cluster::connect;
        auto met = (cluster.*meet)(other, Purpose::kData, 1, monotonic_ns() + 10 * kSecond, {});
        if (!met.ok()) return std::string(name_of(met.status().code())) + " " + met.status().message();
      }
      if (cluster.rank() == 3) cluster.announce(Status(ErrorCode::kMismatch, "they differ"));
      auto socket = cluster.accept(0, Purpose::kData, 0, monotonic_ns() + 10 * kSecond);
      return std::string(name_of(socket.status().code())) + " " + socket.status().message();
    });
  }
  for (const size_t rank : {0, 1, 2, 3, 4}) EXPECT_EQ(ranks_.answer(rank), "mismatch they differ");
}

TEST_F(ClusterTest, ARankThatDiesWhileJoiningEndsTheWait) {
  start(0, 3, members);
  start(1, 3, members);
  ranks_.start([this] {
    // Registers, says who it is, and is gone before rank 1 and 0 have heard of the last one.
    auto cluster = join(2, 4);
    return std::string();
  });
  EXPECT_THAT(ranks_.answer(0), StartsWith("rendezvous: "));
  EXPECT_THAT(ranks_.answer(1), StartsWith("rendezvous: "));
}

TEST_F(ClusterTest, AnInterruptIsAnErrorOfTheOthers) {
  start(0, 4, members);
  start(1, 4, members);
  ranks_.start([this] {
    ClusterOptions options{2, 4, "test", monotonic_ns() + 20 * kSecond, {}};
    options.interrupted = [begin = monotonic_ns()] {
      const bool late = monotonic_ns() - begin > kSecond / 2;
      return late ? Status(ErrorCode::kInterrupted, "Ctrl-C") : Status();
    };
    return text_of(Cluster::join(meeting_, options).status());
  });
  EXPECT_EQ(ranks_.answer(2), "interrupted: Ctrl-C");
  for (const size_t rank : {0, 1}) {
    EXPECT_THAT(ranks_.answer(rank),
                AllOf(StartsWith("rendezvous: rank 2 on "), HasSubstr("was interrupted")));
  }
}

TEST_F(ClusterTest, AWrongSecretIsRefusedAndSaid) {
  start(0, 2, members, 4.5);
  ranks_.start([this] {
    ::setenv("COLLECTIVE_OPS_SECRET", "quite another secret", 1);
    return join(1, 2, 10).status().message();
  });
  EXPECT_THAT(ranks_.answer(1), AllOf(HasSubstr("did not let it in"), HasSubstr("COLLECTIVE_OPS_SECRET")));
  EXPECT_THAT(ranks_.answer(0),
              AllOf(HasSubstr("rank 1 did not come"), HasSubstr("did not know its secret")));
}

TEST_F(ClusterTest, RanksOfOneHostNeedNoSecret) {
  ::unsetenv("COLLECTIVE_OPS_SECRET");
  for (int rank = 0; rank < 3; ++rank) start(rank, 3, members);
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks_.answer(rank), "0:0:0 1:0:1 2:0:2 3");
}

TEST_F(ClusterTest, TwoJobsAtOnceWithTheSamePortsDoNotMix) {
  Ranks all;
  for (const char* job : {"one", "two"}) {
    for (int rank = 0; rank < 3; ++rank) {
      all.start([=, this] {
        ClusterOptions options{rank, 3, job, monotonic_ns() + 20 * kSecond, {}};
        auto cluster = Cluster::join(meeting_, options);
        if (!cluster.ok()) return cluster.status().message();
        return (*cluster)->local_job();  // made by rank 0 for all of its own
      });
    }
  }
  const std::vector<std::string> met = all.answers();
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(met[i].rfind("cluster ", 0), 0U) << met[i];
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(met[i], met[i < 3 ? 0 : 3]);
  EXPECT_NE(met[0], met[3]);
}

// Strangers: some say nothing, some talk nonsense, some stop in the middle.
TEST_F(ClusterTest, StrangersAtTheDoorDoNotKeepRanksFromJoining) {
  const SocketAddress door = SocketAddress::loopback(AF_INET, meeting_.root_ports[0]);
  start(0, 3, members);
  std::vector<Descriptor> strangers;
  const int64_t until = monotonic_ns() + 10 * kSecond;
  while (strangers.size() < 300 && monotonic_ns() < until) {
    Descriptor stranger(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(stranger.get(), door.get(), door.length()) != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    const std::string nonsense(strangers.size() % 3 * 60, 'x');
    (void)!::send(stranger.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
    strangers.push_back(std::move(stranger));
  }
  start(1, 3, members);
  start(2, 3, members);
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks_.answer(rank), "0:0:0 1:0:1 2:0:2 3");
}

TEST_F(ClusterTest, AForkedChildDoesNotKeepADeadRankAlive) {
  start(0, 2, [](Cluster& cluster) {
    auto socket = cluster.accept(1, Purpose::kData, 0, monotonic_ns() + 10 * kSecond);
    return std::string(name_of(socket.status().code()));
  });
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  start(1, 2, [&ends](Cluster&) {
    if (::fork() == 0) {
      ::close(ends[1]);
      char end = 0;
      (void)!::read(ends[0], &end, 1);  // lives until the test has ended
      ::_exit(0);
    }
    ::_exit(1);
    return std::string();
  });
  EXPECT_EQ(ranks_.answer(0), "peer_lost");
  ::close(ends[0]);
  ::close(ends[1]);
}

// What ranks share in their memory: a map that waits.
class MemoryStore : public KeyValueStore {
 public:
  Status set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return Status();
  }
  Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, timeout, [&] { return values_.count(key) > 0; })) return values_[key];
    return Status(ErrorCode::kTimeout, key + " has not been set");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

std::vector<std::string> join_as_threads(const std::vector<MeetingPlace>& meetings) {
  std::vector<std::string> answers(meetings.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < meetings.size(); ++i) {
    threads.emplace_back([&, i] {
      ClusterOptions options{static_cast<int>(i),
                             static_cast<int>(meetings.size()),
                             "threads",
                             monotonic_ns() + 20 * kSecond,
                             {}};
      auto cluster = Cluster::join(meetings[i], options);
      answers[i] = cluster.ok() ? members(**cluster) : cluster.status().message();
    });
  }
  for (auto& thread : threads) thread.join();
  return answers;
}

TEST_F(ClusterTest, ByAStoreAndByRootInfo) {
  MeetingPlace by_store;
  by_store.store = std::make_shared<MemoryStore>();
  EXPECT_THAT(join_as_threads({3, by_store}), ::testing::Each("0:0:0 1:0:1 2:0:2 3"));

  MeetingPlace by_info;
  auto info = create_root_info();
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_LT(info->size(), 4000u);
  by_info.root_info = *info;
  EXPECT_THAT(join_as_threads({3, by_info}), ::testing::Each("0:0:0 1:0:1 2:0:2 3"));
  // Each text serves one group.
  EXPECT_THAT(join_as_threads({by_info})[0], HasSubstr("has used it already"));
  by_info.root_info = "something else";
  EXPECT_THAT(join_as_threads({by_info})[0], HasSubstr("no root info"));
}

}  // namespace
}  // namespace collective_ops
