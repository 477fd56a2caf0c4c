// Groups of some ranks: made by their members alone, from several threads at once, apart from each other.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "thread_ranks.h"

namespace collective_ops {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

using Ranks = std::vector<int>;

std::unique_ptr<Communicator> made(Communicator& of, const Ranks& ranks, const GroupOptions& options = {}) {
  auto group = of.create_group(ranks, options);
  EXPECT_TRUE(group.ok()) << group.status().message();
  return group.ok() ? std::move(*group) : nullptr;
}

// The sum over the group of the members' world ranks plus `salt`.
int64_t summed(Communicator& group, int64_t salt) {
  int64_t value = group.ranks()[static_cast<size_t>(group.rank())] + salt;
  const Status status = group.all_reduce(&value, &value, 1, DataType::kInt64, ReduceOp::kSum);
  EXPECT_TRUE(status.ok()) << status.message();
  return value;
}

TEST(Groups, HalvesMadeAtOnceThenTheWorld) {
  ThreadRanks ranks(4);
  ranks.run([](Communicator& world) {
    const bool low = world.rank() < 2;
    const auto half = made(world, low ? Ranks{0, 1} : Ranks{2, 3});
    ASSERT_NE(half, nullptr);
    EXPECT_EQ(half->world_size(), 2);
    EXPECT_EQ(half->rank(), world.rank() % 2);
    EXPECT_EQ(summed(*half, 0), low ? 1 : 5);
    EXPECT_EQ(summed(world, 0), 6);
    EXPECT_EQ(summed(*half, 10), low ? 21 : 25);
  });
}

TEST(Groups, OthersGoOnWithout) {
  ThreadRanks ranks(4);
  ranks.run([](Communicator& world) {
    if (world.rank() == 1 || world.rank() == 2) {
      const auto pair = made(world, {1, 2});
      ASSERT_NE(pair, nullptr);
      for (int i = 0; i < 50; ++i) EXPECT_EQ(summed(*pair, i), 3 + 2 * i);
    }
    EXPECT_EQ(summed(world, 1), 10);
  });
}

TEST(Groups, TheListsOrderIsTheRanksOrder) {
  ThreadRanks ranks(4);
  ranks.run([](Communicator& world) {
    if (world.rank() % 2 == 0) return;
    const auto pair = made(world, {3, 1}, {.name = "odd"});
    ASSERT_NE(pair, nullptr);
    EXPECT_EQ(pair->name(), "odd");
    EXPECT_THAT(pair->ranks(), ElementsAre(3, 1));
    EXPECT_EQ(pair->rank(), world.rank() == 3 ? 0 : 1);
    int32_t value = world.rank();
    ASSERT_TRUE(pair->broadcast(&value, 1, DataType::kInt32, 0).ok());
    EXPECT_EQ(value, 3);
    int32_t everyone[2] = {};
    value = world.rank();
    ASSERT_TRUE(pair->all_gather(&value, everyone, 1, DataType::kInt32).ok());
    EXPECT_THAT(everyone, ElementsAre(3, 1));
    const Status wrong = pair->broadcast(&value, 1, DataType::kInt32, 3);
    EXPECT_EQ(wrong.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(wrong.message(), HasSubstr("group \"odd\" of ranks 3,1"));
  });
}

TEST(Groups, OfAGroup) {
  ThreadRanks ranks(5);
  ranks.run([](Communicator& world) {
    if (world.rank() == 0) return;
    const auto outer = made(world, {4, 3, 2, 1});
    ASSERT_NE(outer, nullptr);
    if (outer->rank() == 2) return;  // world rank 2
    const auto inner = made(*outer, {3, 1, 0});
    ASSERT_NE(inner, nullptr);
    EXPECT_THAT(inner->ranks(), ElementsAre(1, 3, 4));
    EXPECT_EQ(summed(*inner, 0), 8);
    const auto alone = made(*inner, {inner->rank()});
    ASSERT_NE(alone, nullptr);
    EXPECT_EQ(summed(*alone, 0), world.rank());
  });
}

TEST(Groups, ChildrenOfDifferentParentsNeverMeet) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& world) {
    const auto first = made(world, {0, 1}, {.name = "first"});
    const auto second = made(world, {0, 1}, {.name = "second"});
    ASSERT_TRUE(first && second);
    Communicator& own = world.rank() == 0 ? *first : *second;
    const auto child = own.create_group(Ranks{0, 1}, {.connect_timeout = milliseconds(300)});
    ASSERT_FALSE(child.ok());
    EXPECT_EQ(child.status().code(), ErrorCode::kRendezvous);
  });
}

TEST(Groups, OverlappingOnesInterleave) {
  ThreadRanks ranks(3);
  ranks.run([](Communicator& world) {
    // A ring of pairs: each rank is in two of them.
    const int me = world.rank();
    std::vector<std::unique_ptr<Communicator>> pairs(3);
    for (int i = 0; i < 3; ++i) {
      if (me == i || me == (i + 1) % 3) pairs[static_cast<size_t>(i)] = made(world, {i, (i + 1) % 3});
    }
    for (int round = 0; round < 100; ++round) {
      for (int i = 0; i < 3; ++i) {
        Communicator* pair = pairs[static_cast<size_t>(i)].get();
        if (pair != nullptr) {
          EXPECT_EQ(summed(*pair, round), i + (i + 1) % 3 + 2 * round);
        }
      }
      EXPECT_EQ(summed(world, round), 3 + 3 * round);
    }
  });
}

// Four threads on each rank, each with a group of its own of the same ranks: told apart by their names.
TEST(Groups, ThreadsMakeAndUseTheirOwnAtOnce) {
  ThreadRanks ranks(3);
  ranks.run([](Communicator& world) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&world, t] {
        const auto group = made(world, {2, 0, 1}, {.name = "thread " + std::to_string(t)});
        ASSERT_NE(group, nullptr);
        std::vector<float> data(300);
        for (int call = 0; call < 200; ++call) {
          const float mine = static_cast<float>(world.rank() + t * call);
          std::fill(data.begin(), data.end(), mine);
          const Status status =
              group->all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
          ASSERT_TRUE(status.ok()) << status.message();
          ASSERT_EQ(data[299], static_cast<float>(3 + 3 * t * call));
        }
      });
    }
    for (auto& thread : threads) thread.join();
  });
}

TEST(Groups, TheSameListAgainIsAnotherGroup) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& world) {
    const auto first = made(world, {0, 1});
    const auto second = made(world, {0, 1});
    ASSERT_TRUE(first != nullptr && second != nullptr);
    first->abort("no longer needed");
    EXPECT_EQ(first->barrier().code(), ErrorCode::kGroupBroken);
    EXPECT_TRUE(second->barrier().ok());
  });
}

TEST(Groups, ListsThatCannotBe) {
  ThreadRanks ranks(3);
  const auto refused = [&](const Ranks& list, const GroupOptions& options = {}) {
    const auto group = ranks[1].create_group(list, options);
    EXPECT_EQ(group.status().code(), ErrorCode::kInvalidArgument);
    return group.status().message();
  };
  EXPECT_THAT(refused({}), HasSubstr("the list is empty"));
  EXPECT_THAT(refused({1, 2, 1}), HasSubstr("[1, 2, 1]: 1 stands there twice"));
  EXPECT_THAT(refused({1, 3}), HasSubstr("3 is no rank of the group, which has 0 to 2"));
  EXPECT_THAT(refused({-1, 1}), HasSubstr("-1 is no rank"));
  EXPECT_THAT(refused({0, 2}), HasSubstr("this is rank 1, which is not in it"));
  EXPECT_THAT(refused({1}, {.name = std::string(128, 'n')}), HasSubstr("128 characters"));
  EXPECT_THAT(refused({1}, {.connect_timeout = milliseconds(0)}), HasSubstr("connect_timeout"));
}

TEST(Groups, WhoeverDoesNotComeIsNamedAndMayFollow) {
  ThreadRanks ranks(5);
  const Ranks list = {4, 2, 0, 3};
  std::vector<Status> seen(5);
  ranks.run([&](Communicator& world) {
    if (world.rank() == 2 || world.rank() == 0) {
      auto group = world.create_group(list, {.name = "tp", .connect_timeout = milliseconds(500)});
      seen[static_cast<size_t>(world.rank())] = group.status();
    }
  });
  EXPECT_EQ(seen[0].code(), ErrorCode::kRendezvous);
  EXPECT_THAT(seen[0].message(), HasSubstr("creating group \"tp\" of ranks 4,2,0,3: ranks 3-4 did not come"));
  EXPECT_EQ(seen[0].message(), seen[2].message());
  // Those that come later hear it too; then all are in step again.
  EXPECT_EQ(ranks[3].create_group(list, {.name = "tp"}).status().message(), seen[0].message());
  EXPECT_EQ(ranks[4].create_group(list, {.name = "tp"}).status().message(), seen[0].message());
  ranks.run([&](Communicator& world) {
    if (world.rank() == 1) return;
    const auto group = made(world, list, {.name = "tp"});
    ASSERT_NE(group, nullptr);
    EXPECT_EQ(summed(*group, 0), 9);
  });
}

TEST(Groups, AFailureStaysInItsGroup) {
  ThreadRanks ranks(4);
  ranks.run([](Communicator& world) {
    const auto high = world.rank() >= 2 ? made(world, {2, 3}, {.name = "high"}) : nullptr;
    if (high) {
      std::vector<float> data(16);
      const Status status = high->all_reduce(data.data(), data.data(), world.rank() == 2 ? 8u : 16u,
                                             DataType::kFloat32, ReduceOp::kSum);
      EXPECT_EQ(status.code(), ErrorCode::kMismatch);
      EXPECT_THAT(status.message(), HasSubstr("as call #1 of group \"high\" of ranks 2,3: "));
      EXPECT_THAT(status.message(), HasSubstr("rank 2: all_reduce of 8 float32"));
      EXPECT_THAT(status.message(), HasSubstr("rank 3: all_reduce of 16 float32"));
      const Status next = high->barrier();
      EXPECT_EQ(next.code(), ErrorCode::kGroupBroken);
      EXPECT_THAT(next.message(), HasSubstr("group \"high\" of ranks 2,3 was broken by an earlier failure"));
    }
    EXPECT_EQ(summed(world, 0), 6);
  });
}

TEST(Groups, RootsAreToldByBothRanks) {
  ThreadRanks ranks(4);
  ranks.run([](Communicator& world) {
    if (world.rank() < 2) return;
    const auto group = made(world, {3, 2});
    ASSERT_NE(group, nullptr);
    int32_t value[100] = {};
    const Status status = group->broadcast(value, 100, DataType::kInt32, group->rank());
    const Status next = status.ok() ? group->barrier() : status;
    EXPECT_THAT(next.message(), HasSubstr("root 0 (rank 3)"));
    EXPECT_THAT(next.message(), HasSubstr("root 1 (rank 2)"));
  });
}

// Rank 0 calls on a first, rank 1 on b first: each says where the other is.
TEST(Groups, CallsCrossedBetweenGroups) {
  ThreadRanks ranks(3);
  std::vector<Status> seen(3);
  ranks.run([&](Communicator& world) {
    const GroupOptions a{.name = "a", .exec_timeout = milliseconds(1000)};
    const GroupOptions b{.name = "b", .exec_timeout = milliseconds(1000)};
    const auto first = made(world, {0, 1, 2}, a);
    const auto second = made(world, {2, 1, 0}, b);
    ASSERT_TRUE(first != nullptr && second != nullptr);
    int64_t value = 0;
    Communicator& mine = world.rank() == 1 ? *second : *first;
    seen[static_cast<size_t>(world.rank())] =
        mine.all_reduce(&value, &value, 1, DataType::kInt64, ReduceOp::kSum);
    (void)world.barrier();  // nobody leaves before all have seen it
  });
  EXPECT_EQ(seen[0].code(), ErrorCode::kTimeout);
  EXPECT_EQ(seen[1].code(), ErrorCode::kTimeout);
  EXPECT_THAT(seen[0].message(),
              HasSubstr("of group \"a\" of ranks 0,1,2 for rank 1, which has made no call"));
  // Whichever of them fails first leaves a word of it.
  EXPECT_THAT(seen[0].message(), HasSubstr("in call #1 (all_reduce of 1 int64, op sum) of group \"b\""));
  EXPECT_THAT(seen[1].message(), HasSubstr("in call #1 (all_reduce of 1 int64, op sum) of group \"a\""));
  EXPECT_THAT(seen[0].message(), HasSubstr("in an order that fits"));
}

TEST(Groups, ACallOnTheWorldWhileAnotherWaitsInAGroup) {
  ThreadRanks ranks(2, {.exec_timeout = milliseconds(1000)});
  std::vector<Status> seen(2);
  std::atomic<int> ended{0};  // nobody leaves before
  ranks.run([&](Communicator& world) {
    const auto group = made(world, {0, 1}, {.name = "g"});
    ASSERT_NE(group, nullptr);
    seen[static_cast<size_t>(world.rank())] = world.rank() == 0 ? world.barrier() : group->barrier();
    ++ended;
    while (ended < 2) std::this_thread::yield();
  });
  EXPECT_THAT(seen[0].message(), HasSubstr("in call #1 (barrier) of group \"g\" of ranks 0,1"));
  EXPECT_THAT(seen[1].message(),
              testing::AnyOf(HasSubstr("is in call #1 (barrier) of the group of all ranks"),
                             HasSubstr("which has made no call yet")));
}

TEST(Groups, AbortEndsABlockedCallOfItsGroupAlone) {
  ThreadRanks ranks(3);
  ranks.run([](Communicator& world) {
    if (world.rank() < 2) {
      const auto group = made(world, {0, 1}, {.exec_timeout = milliseconds(0)});
      ASSERT_NE(group, nullptr);
      if (world.rank() == 0) {
        const Status status = group->barrier();  // which rank 1 never calls
        EXPECT_EQ(status.code(), ErrorCode::kGroupBroken);
        EXPECT_THAT(status.message(), HasSubstr("enough of it"));
      } else {
        group->abort("enough of it");
      }
      EXPECT_EQ(summed(world, 0), 3);
    } else {
      EXPECT_EQ(summed(world, 0), 3);
    }
  });
}

TEST(Groups, GoInAnyOrder) {
  for (const bool world_first : {false, true}) {
    auto worlds = Communicator::create_for_threads(3);
    ASSERT_TRUE(worlds.ok());
    std::vector<std::thread> threads;
    for (auto& each : *worlds) {
      threads.emplace_back([world_first, world = std::move(each)]() mutable {
        auto outer = made(*world, {0, 1, 2});
        auto inner = made(*outer, {2, 1, 0});
        if (world_first) world.reset();
        outer.reset();
        EXPECT_EQ(summed(*inner, 0), 3);
        auto more = made(*inner, {0, 1, 2});
        inner.reset();
        EXPECT_EQ(summed(*more, 1), 6);
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

TEST(Groups, LeavingOneIsSaidInIt) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& world) {
    auto group = made(world, {1, 0}, {.name = "short"});
    ASSERT_NE(group, nullptr);
    ASSERT_TRUE(group->barrier().ok());
    if (world.rank() == 1) {
      group.reset();
    } else {
      const Status status = group->barrier();
      EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
      EXPECT_THAT(status.message(),
                  HasSubstr("rank 1 left the group after call #1, while rank 0 was in call #2 "
                            "(barrier) of group \"short\" of ranks 1,0"));
    }
    EXPECT_EQ(summed(world, 0), 1);
  });
}

TEST(Groups, AveragesAndPartsAreOfTheGroup) {
  ThreadRanks ranks(4);
  ranks.run([](Communicator& world) {
    if (world.rank() == 2) return;
    const auto group = made(world, {3, 0, 1});
    ASSERT_NE(group, nullptr);
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{200'000}}) {
      std::vector<float> data(3 * count, static_cast<float>(world.rank()));
      std::vector<float> part(count);
      ASSERT_TRUE(
          group->reduce_scatter(data.data(), part.data(), count, DataType::kFloat32, ReduceOp::kSum).ok());
      EXPECT_EQ(part[count - 1], 4.0f);
      ASSERT_TRUE(
          group->all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kAvg).ok());
      EXPECT_EQ(data[0], 4.0f / 3.0f);
    }
  });
}

TEST(Groups, TwoHundredAtOnce) {
  ThreadRanks ranks(2);
  ranks.run([](Communicator& world) {
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int i = 0; i < 200; ++i) groups.push_back(made(world, {0, 1}));
    for (int i = 199; i >= 0; --i) EXPECT_EQ(summed(*groups[static_cast<size_t>(i)], i), 1 + 2 * i);
  });
}

}  // namespace
}  // namespace collective_ops
