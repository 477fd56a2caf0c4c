#include "bootstrap/liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ranks.h"

namespace collective_ops {
namespace {

using ::testing::HasSubstr;

class Liveness : public ::testing::TestWithParam<bool> {  // with pidfd or without
 protected:
  PeerProcess peer(int rank, pid_t pid) {
    const int64_t start_time = read_process(pid)->start_time;
    PeerProcess process{rank, pid, start_time, Descriptor(), "here"};
    if (GetParam()) process.pidfd = open_process(pid, start_time);
    EXPECT_EQ(process.pidfd.valid(), GetParam());
    return process;
  }
  // Blocks until a child has ended, and leaves it a zombie.
  void wait_for_zombie(pid_t pid) {
    siginfo_t info;
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  }
};

TEST_P(Liveness, NamesTheLowestDeadRankAndHowItEnded) {
  Ranks ranks;
  Gate end;
  for (int i = 0; i < 2; ++i) {
    ranks.start([] {
      ::pause();
      return std::string();
    });
  }
  ranks.start([&] {
    end.wait();
    ::_exit(3);
    return std::string();
  });
  std::vector<PeerProcess> peers;
  peers.push_back(peer(0, ::getpid()));
  for (int rank = 1; rank < 4; ++rank) peers.push_back(peer(rank, ranks.pid(static_cast<size_t>(rank - 1))));
  PeerWatch watch(peers, 0);
  EXPECT_FALSE(watch.check().has_value());

  end.open();
  wait_for_zombie(ranks.pid(2));
  auto dead = watch.check();
  ASSERT_TRUE(dead.has_value());
  EXPECT_EQ(dead->rank, 3);
  EXPECT_EQ(dead->pid, ranks.pid(2));
  EXPECT_EQ(dead->how, "exited with status 3");

  ranks.kill(1);
  wait_for_zombie(ranks.pid(1));
  dead = watch.check();
  ASSERT_TRUE(dead.has_value());
  EXPECT_EQ(dead->rank, 2);
  EXPECT_EQ(dead->how, "killed by signal 9 (Killed)");
  EXPECT_EQ(watch.check_all().size(), 2u);

  ranks.reap(1);
  dead = watch.check();
  ASSERT_TRUE(dead.has_value());
  EXPECT_EQ(dead->rank, 2);
  EXPECT_TRUE(dead->how == "gone" || dead->how == "killed by signal 9 (Killed)") << dead->how;
}

TEST_P(Liveness, AStoppedRankLives) {
  Ranks ranks;
  const pid_t pid = ranks.start([] {
    ::pause();
    return std::string();
  });
  ::kill(pid, SIGSTOP);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOWAIT), 0);
  std::vector<PeerProcess> peers;
  peers.push_back(peer(0, pid));
  PeerWatch watch(peers, 1);
  EXPECT_FALSE(watch.check().has_value());
}

// Without a descriptor the start time tells; a descriptor never means another process.
TEST(PeerWatch, AnotherProcessWithTheSameNumberIsNotThePeer) {
  std::vector<PeerProcess> peers;
  peers.push_back({0, ::getpid(), read_process(::getpid())->start_time - 1, Descriptor(), "here"});
  PeerWatch watch(peers, 1);
  ASSERT_TRUE(watch.check().has_value());
  EXPECT_EQ(watch.check()->how, "gone");
}

TEST(PeerWatch, ANumberThatAnotherProcessHasNowIsNotOpened) {
  const int64_t start_time = read_process(::getpid())->start_time;
  EXPECT_TRUE(open_process(::getpid(), start_time).valid());
  EXPECT_FALSE(open_process(::getpid(), start_time - 1).valid());
}

TEST_P(Liveness, NobodyToWatch) {
  PeerWatch watch({}, 0);
  EXPECT_FALSE(watch.check().has_value());
}

INSTANTIATE_TEST_SUITE_P(Both, Liveness, ::testing::Bool(),
                         [](const auto& name) { return name.param ? "pidfd" : "number"; });

}  // namespace
}  // namespace collective_ops
