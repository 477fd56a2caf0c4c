#include "transport/tcp/links.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "sockets.h"

namespace collective_ops::tcp {
namespace {

// Where ranks that are threads find the two ends of a connection.
class Board {
 public:
  PrivateDescriptor take(int own, int peer, uint32_t number) {
    const std::lock_guard lock(mutex_);
    const auto key = std::tuple(std::min(own, peer), std::max(own, peer), number);
    auto found = waiting_.find(key);
    if (found != waiting_.end()) {
      PrivateDescriptor mine = std::move(found->second);
      waiting_.erase(found);
      return mine;
    }
    auto [mine, theirs] = socket_pair();
    waiting_.emplace(key, std::move(theirs));
    return std::move(mine);
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<int, int, uint32_t>, PrivateDescriptor> waiting_;
};

class Owner final : public LinkOwner {
 public:
  Owner(Board& board, int rank) : board_(board), rank_(rank) {}
  Result<PrivateDescriptor> connect(int peer, uint32_t number, int64_t) override {
    return board_.take(rank_, peer, number);
  }
  Status check(int peer, bool late) override {
    checks.fetch_add(1);
    if (late) return {ErrorCode::kTimeout, "late for " + std::to_string(peer)};
    return {};
  }
  int pollable() const override { return -1; }
  Status differs(int peer, const Header& theirs, const Header& ours) override {
    return {ErrorCode::kMismatch, std::to_string(peer) + ": " + std::to_string(theirs.call) + " against " +
                                      std::to_string(ours.call)};
  }
  Status noticed(int peer, const Notice& notice) override {
    return {notice.code, std::to_string(peer) + " says " + notice.text};
  }
  Status lost(int peer, const std::string& how) override {
    return {ErrorCode::kPeerLost, std::to_string(peer) + ": " + how};
  }

  std::atomic<int> checks{0};

 private:
  Board& board_;
  int rank_;
};

struct Rank {
  Rank(Board& board, int rank, int size, int connections = 2)
      : owner(board, rank), links(owner, pace, {.world_size = size, .connections = connections}) {}
  Owner owner;
  shm::HostsPace pace;
  Links links;
};

Header header_of(size_t bytes, uint32_t call = 1) { return {.call = call, .bytes = bytes}; }

TEST(Links, EveryRankExchangesWithEveryOther) {
  constexpr int kRanks = 4;
  constexpr size_t kBytes = 3 << 20;
  Board board;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < kRanks; ++r) ranks.push_back(std::make_unique<Rank>(board, r, kRanks));
  std::vector<std::thread> threads;
  for (int me = 0; me < kRanks; ++me) {
    threads.emplace_back([&, me] {
      Links& links = ranks[static_cast<size_t>(me)]->links;
      for (int turn = 0; turn < 3; ++turn) {
        std::vector<std::byte> mine(kBytes, static_cast<std::byte>(me * 10 + turn)), theirs(kBytes);
        for (int k = 1; k < kRanks; ++k)
          ASSERT_TRUE(links.send((me + k) % kRanks, header_of(kBytes), mine.data()).ok());
        for (int k = 1; k < kRanks; ++k) {
          const int peer = (me + k) % kRanks;
          const Status status = links.receive(peer, header_of(kBytes), theirs.data());
          ASSERT_TRUE(status.ok()) << status.message();
          const auto wanted = static_cast<std::byte>(peer * 10 + turn);
          ASSERT_EQ(theirs.front(), wanted);
          ASSERT_EQ(theirs.back(), wanted);
        }
        ASSERT_TRUE(links.flush().ok());
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Links, GiveUpAtTheDeadlineAndLookMeanwhile) {
  Board board;
  Rank rank(board, 0, 2);
  std::byte data[8];
  rank.links.begin(monotonic_ns() + 30'000'000);
  const Status status = rank.links.receive(1, header_of(8), data);
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_EQ(status.message(), "late for 1");
  EXPECT_GT(rank.owner.checks.load(), 1);
}

TEST(Links, PassOnWhyAPeerHasFailed) {
  Board board;
  Rank a(board, 0, 2), b(board, 1, 2);
  std::byte data[8] = {};
  ASSERT_TRUE(a.links.send(1, header_of(8), data).ok());
  ASSERT_TRUE(b.links.receive(0, header_of(8), data).ok());
  a.links.tell({NoticeKind::kFailed, ErrorCode::kMismatch, 2, "no"});
  a.links.drop();
  const Status status = b.links.receive(0, header_of(8, 2), data);
  EXPECT_EQ(status.code(), ErrorCode::kMismatch);
  EXPECT_EQ(status.message(), "0 says no");
}

TEST(Links, APeerThatEndsWithoutAWordIsLost) {
  Board board;
  Rank a(board, 0, 2);
  auto b = std::make_unique<Rank>(board, 1, 2);
  std::byte data[8] = {};
  ASSERT_TRUE(a.links.send(1, header_of(8), data).ok());
  ASSERT_TRUE(b->links.receive(0, header_of(8), data).ok());
  b.reset();
  const Status status = a.links.receive(1, header_of(8), data);
  EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
  EXPECT_NE(status.message().find("1: its connection was closed"), std::string::npos) << status.message();
}

TEST(Links, WhatOneThatHasLeftSentBeforeStillCounts) {
  Board board;
  Rank a(board, 0, 2);
  auto b = std::make_unique<Rank>(board, 1, 2);
  std::byte data[8] = {std::byte{5}};
  ASSERT_TRUE(b->links.send(0, header_of(8), data).ok());
  ASSERT_TRUE(b->links.flush().ok());
  b->links.tell({NoticeKind::kLeft, ErrorCode::kOk, 1, ""});
  b.reset();
  std::byte got[8] = {};
  ASSERT_TRUE(a.links.receive(1, header_of(8), got).ok());
  EXPECT_EQ(got[0], std::byte{5});
  const Status status = a.links.receive(1, header_of(8), got);
  EXPECT_EQ(status.message(), "1: it has left the group");
}

TEST(Links, ReportAnotherCallWithBothHeaders) {
  Board board;
  Rank a(board, 0, 2), b(board, 1, 2);
  std::byte data[8] = {};
  ASSERT_TRUE(a.links.send(1, header_of(8, 4), data).ok());
  const Status status = b.links.receive(0, header_of(8, 5), data);
  EXPECT_EQ(status.code(), ErrorCode::kMismatch);
  EXPECT_EQ(status.message(), "0: 4 against 5");
}

}  // namespace
}  // namespace collective_ops::tcp
