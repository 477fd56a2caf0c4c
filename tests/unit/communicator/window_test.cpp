// Windows: parts of all sizes, signals, and what happens when a rank is missing or goes.
#include <collective_ops/window.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>

#include "thread_ranks.h"

namespace collective_ops {
namespace {

using std::chrono::milliseconds;

std::shared_ptr<SharedBuffer> part_of(size_t bytes) {
  auto part = Communicator::allocate_part(bytes);
  EXPECT_TRUE(part.ok()) << part.status().message();
  return *part;
}

std::unique_ptr<Window> open(Communicator& comm, size_t payload, int channels) {
  const size_t signals = Window::signal_bytes(comm.world_size(), channels);
  auto window = comm.open_window(part_of(payload + signals), signals);
  EXPECT_TRUE(window.ok()) << window.status().message();
  return std::move(*window);
}

class Windows : public testing::TestWithParam<int> {};

TEST_P(Windows, EveryRankReadsWhatOthersWroteAfterABarrier) {
  ThreadRanks ranks(GetParam());
  ranks.run([&](Communicator& comm) {
    const int size = comm.world_size(), rank = comm.rank();
    const auto window = open(comm, static_cast<size_t>(size) * sizeof(int), 2);
    for (int round = 0; round < 200; ++round) {
      for (int peer = 0; peer < size; ++peer)
        reinterpret_cast<int*>(window->data(peer))[rank] = round * 100 + rank * 10 + peer;
      ASSERT_TRUE(window->barrier(round % 2).ok());
      const int* own = reinterpret_cast<const int*>(window->data(rank));
      for (int peer = 0; peer < size; ++peer) ASSERT_EQ(own[peer], round * 100 + peer * 10 + rank);
      ASSERT_TRUE(window->barrier(round % 2).ok());
    }
  });
}

TEST_P(Windows, ATokenGoesRound) {
  ThreadRanks ranks(GetParam());
  if (GetParam() == 1) return;
  std::atomic<int> turns{0};
  ranks.run([&](Communicator& comm) {
    const int size = comm.world_size(), rank = comm.rank();
    const auto window = open(comm, 0, 1);
    for (int round = 0; round < 50; ++round) {
      if (rank > 0 || round > 0) {
        ASSERT_TRUE(window->await((rank + size - 1) % size, 0).ok());
      }
      ASSERT_EQ(turns.load(), round * size + rank);
      ++turns;
      ASSERT_TRUE(window->signal((rank + 1) % size, 0).ok());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Windows, testing::Values(1, 2, 3, 8));

TEST(Window, PartsDifferAndMayBeMissing) {
  ThreadRanks ranks(3);
  ranks.run([&](Communicator& comm) {
    const auto part = comm.rank() == 2 ? nullptr : part_of(100 * static_cast<size_t>(comm.rank() + 1));
    auto window = comm.open_window(part, 0);
    ASSERT_TRUE(window.ok()) << window.status().message();
    EXPECT_EQ((*window)->size(0), 100u);
    EXPECT_EQ((*window)->size(1), 200u);
    EXPECT_EQ((*window)->size(2), 0u);
    EXPECT_EQ((*window)->data(2), nullptr);
    EXPECT_EQ((*window)->data(1)[199], std::byte{0});
    EXPECT_EQ((*window)->signal(2 - comm.rank() % 2, 0).code(), ErrorCode::kInvalidArgument);
  });
}

TEST(Window, APartOutlivesItsOwnersCopy) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    std::unique_ptr<Window> window = open(comm, 4096, 1);
    std::memset(window->data(comm.rank()), comm.rank() + 1, 4096);
    ASSERT_TRUE(window->barrier(0).ok());
    if (comm.rank() == 0) window.reset();
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 0) return;
    for (size_t i = 0; i < 4096; ++i) ASSERT_EQ(window->data(0)[i], std::byte{1});
  });
}

TEST(Window, ArgumentsThatAreWrongFailOnAllRanksAndTheGroupGoesOn) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    auto differing = comm.open_window(part_of(64), comm.rank() == 0 ? 8 : 16);
    EXPECT_EQ(differing.status().code(), ErrorCode::kInvalidArgument);
    auto too_many = comm.open_window(part_of(8), comm.rank() == 0 ? 8 : 16);
    EXPECT_EQ(too_many.status().code(), ErrorCode::kInvalidArgument);
    if (comm.rank() == 0) {
      EXPECT_NE(too_many.status().message().find("rank 1"), std::string::npos);
    }
    const auto window = open(comm, 8, 1);
    EXPECT_EQ(window->signal(2, 0).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(window->signal(comm.rank(), 0).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(window->signal(1 - comm.rank(), 1).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(window->await(1 - comm.rank(), -1).code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(window->barrier(0).ok());
  });
}

TEST(Window, WaitsEndAtTheirDeadlineAndWhenTheGroupBreaks) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    const auto window = open(comm, 8, 1);
    if (comm.rank() == 1) {
      ASSERT_TRUE(comm.barrier().ok());
      comm.abort("stopped by the test");
      return;
    }
    const Status late = window->await(1, 0, milliseconds(30));
    EXPECT_EQ(late.code(), ErrorCode::kTimeout);
    EXPECT_NE(late.message().find("waits for rank 1 to signal"), std::string::npos) << late.message();
    ASSERT_TRUE(comm.barrier().ok());
    const Status broken = window->await(1, 0, milliseconds(0));
    EXPECT_NE(broken.message().find("stopped by the test"), std::string::npos) << broken.message();
  });
}

}  // namespace
}  // namespace collective_ops
