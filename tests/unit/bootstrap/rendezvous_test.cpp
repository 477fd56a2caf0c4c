#include "bootstrap/rendezvous.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ranks.h"

namespace collective_ops {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::set<std::string> open_targets() {
  std::set<std::string> targets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (!target.starts_with("/proc/")) targets.insert(target);  // the iterator's own
  }
  return targets;
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// What a join may open: nothing that has a name in a file system, so nothing that outlives a process.
std::string files_with_names(const std::set<std::string>& before) {
  std::string named;
  for (const std::string& target : open_targets()) {
    const bool nameless = target.starts_with("socket:") || target.starts_with("anon_inode:") ||
                          target.starts_with("/memfd:") || target.starts_with("pipe:");
    if (!nameless && before.count(target) == 0) named += " " + target;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/dev/shm") != std::string::npos) named += " " + line;
  }
  return named;
}

// Joins, leaves a mark in the control segment, and sees everyone else's.
std::string join_and_meet(int rank, int world_size, const std::string& job,
                          const JoinSettings& settings = {}) {
  auto group = join(as_rank(rank, world_size, job), control_of, settings);
  if (!group.ok()) return text_of(group.status());
  if (group->rank != rank || group->world_size != world_size) return "wrong rank";
  if (static_cast<int>(group->peers.size()) != world_size) return "wrong peers";
  if (group->control.size() < control_of(world_size)) return "control too small";
  for (int r = 0; r < world_size; ++r) {
    const auto& peer = group->peers[static_cast<size_t>(r)];
    if (peer.rank != r || peer.start_time == 0 || peer.host.empty()) return "bad peer";
  }
  if (group->peers[static_cast<size_t>(rank)].pid != ::getpid()) return "wrong pid";
  auto* marks = reinterpret_cast<unsigned char*>(group->control.data());
  if (__atomic_fetch_add(&marks[rank], 1, __ATOMIC_SEQ_CST) != 0) return "not zeroed";
  for (int r = 0; r < world_size; ++r) {
    while (__atomic_load_n(&marks[r], __ATOMIC_SEQ_CST) == 0) ::usleep(100);
  }
  // Nobody leaves before all have seen all.
  __atomic_fetch_add(&marks[64], 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&marks[64], __ATOMIC_SEQ_CST) != world_size) ::usleep(100);
  return "ok";
}

TEST(Rendezvous, AloneNeedsNoSocket) {
  auto group = join(as_rank(0, 1, fresh_job()), control_of);
  ASSERT_TRUE(group.ok()) << group.status().message();
  EXPECT_EQ(group->mailbox, nullptr);
  ASSERT_EQ(group->peers.size(), 1u);
  EXPECT_EQ(group->peers[0].pid, ::getpid());
  EXPECT_GE(group->control.size(), 4096u);
}

TEST(Rendezvous, EightRanksMeetInAnyOrder) {
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}, {7, 6, 5, 4, 3, 2, 1, 0}}) {
    const std::string job = fresh_job();
    Ranks ranks;
    for (const int rank : order) ranks.start([=] { return join_and_meet(rank, 8, job); });
    EXPECT_THAT(ranks.answers(), Each("ok"));
  }
}

TEST(Rendezvous, RankZeroMayComeLast) {
  const std::string job = fresh_job();
  Ranks ranks;
  Gate asked;
  JoinSettings settings;
  settings.interrupted = [&] {
    asked.open();  // the rank has looked for rank 0 in vain
    return Status();
  };
  ranks.start([=] { return join_and_meet(1, 2, job, settings); });
  asked.wait(3);
  ranks.start([=] { return join_and_meet(0, 2, job); });
  EXPECT_THAT(ranks.answers(), Each("ok"));
}

TEST(Rendezvous, TwoJobsOfOneProcessDoNotMix) {
  const std::string one = fresh_job();
  const std::string two = fresh_job();
  Ranks ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.start([=] {
      auto first = join(as_rank(rank, 2, one), control_of);
      auto second = join(as_rank(1 - rank, 2, two), control_of);
      if (!first.ok() || !second.ok()) return text_of(first.ok() ? second.status() : first.status());
      return std::string(first->rank == rank && second->rank == 1 - rank ? "ok" : "mixed");
    });
  }
  EXPECT_THAT(ranks.answers(), Each("ok"));
}

// Ranks finalize at different moments: a fast one meets the old sockets of slow ones.
TEST(Rendezvous, JoinsOneAfterTheOtherLeaveNothingOpen) {
  const std::string job = fresh_job();
  Ranks ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.start([=] {
      size_t after_first = 0;
      for (int round = 0; round < 200; ++round) {
        auto group = join(as_rank(rank, 3, job), control_of);
        if (!group.ok()) return fmt::format("round {}: {}", round, text_of(group.status()));
        group = Status(ErrorCode::kInternal, "left");
        if (round == 0) after_first = open_descriptors();
      }
      const size_t at_end = open_descriptors();
      return at_end == after_first ? std::string("ok")
                                   : fmt::format("{} then {} descriptors", after_first, at_end);
    });
  }
  EXPECT_THAT(ranks.answers(), Each("ok"));
}

TEST(Rendezvous, OpensNothingThatOutlivesAProcess) {
  const auto before = open_targets();
  EXPECT_THAT(run_group(3,
                        [&](HostGroup& group) -> std::string {
                          const std::string named = files_with_names(before);
                          meet(group);
                          return named.empty() ? "ok" : "opened" + named;
                        }),
              Each("ok"));
}

TEST(Rendezvous, AJobStartsAgainAtOnceAfterKill) {
  const std::string job = fresh_job();
  for (int round = 0; round < 3; ++round) {
    Ranks ranks;
    Gate joined;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.start([&, rank] {
        auto group = join(as_rank(rank, 4, job), control_of);
        if (!group.ok()) return text_of(group.status());
        joined.open();
        ::pause();
        return std::string("never");
      });
    }
    joined.wait(4);
    for (size_t i = 0; i < 4; ++i) ranks.kill(i);  // not waited for: the next round meets dying ones
    Ranks again;
    for (int rank = 0; rank < 4; ++rank) again.start([=] { return join_and_meet(rank, 4, job); });
    EXPECT_THAT(again.answers(), Each("ok"));
    EXPECT_THAT(ranks.answers(), Each(""));  // killed before they answered
  }
}

// A forked child of a rank (a data loader's worker) survives it for a while.
TEST(Rendezvous, AChildOfADeadRankDoesNotHoldItsName) {
  const std::string job = fresh_job();
  Ranks ranks;
  Gate ready;
  Gate end;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.start([&, rank] {
      auto group = join(as_rank(rank, 2, job), control_of);
      if (!group.ok()) return text_of(group.status());
      if (::fork() == 0) {
        ready.open();
        end.wait();
        ::_exit(0);
      }
      ::pause();
      return std::string("never");
    });
  }
  ready.wait(2);
  for (size_t i = 0; i < 2; ++i) ranks.kill(i);
  Ranks again;
  for (int rank = 0; rank < 2; ++rank) again.start([=] { return join_and_meet(rank, 2, job); });
  EXPECT_THAT(again.answers(), Each("ok"));
  end.open(2);
}

}  // namespace
}  // namespace collective_ops
