#include <map>
#include <set>

#include <gtest/gtest.h>

#include "algorithms/algorithms.h"
#include "algorithms/statements.h"
#include "plan/geometry.h"
#include "plan/program.h"

namespace collective_ops {
namespace {

using Kind = Instruction::Kind;

Program lowered(const Plan& plan, const Binding& binding) {
  auto program = lower(plan, binding);
  EXPECT_TRUE(program.ok()) << program.status().message();
  return program.ok() ? std::move(program).value() : Program{};
}

std::vector<Kind> kinds(const Program& program) {
  std::vector<Kind> result;
  for (const Instruction& i : program.instructions) result.push_back(i.kind);
  return result;
}

TEST(Geometry, SlicesAreWholeCacheLinesAndTheLastAreShorter) {
  const Geometry geometry(all_reduce_direct(), {.world_size = 4, .element_size = 4, .count = 70});
  EXPECT_EQ(geometry.total(), 280u);
  const uint64_t lengths[] = {128, 128, 24, 0};
  uint64_t offset = 0;
  for (int b = 0; b < 4; ++b) {
    EXPECT_EQ(geometry.block(b).offset, offset);
    EXPECT_EQ(geometry.block(b).length, lengths[b]);
    offset += lengths[b];
  }
}

TEST(Geometry, BlocksFollowTheCountsOfAVectorVariant) {
  const Geometry geometry(all_gather_direct(), {.world_size = 3, .element_size = 2, .counts = {5, 0, 7}});
  EXPECT_EQ(geometry.total(), 24u);
  EXPECT_EQ(geometry.block(2).offset, 10u);
  EXPECT_EQ(geometry.size_of(Layout::kOwn, 1), 0u);
  EXPECT_EQ(geometry.size_of(Layout::kConcatenated, 1), 24u);
}

TEST(Lower, DirectAllReduceReducesMySliceIntoAllOutputs) {
  const Program program = lowered(all_reduce_direct(), {.rank = 1, .world_size = 3, .count = 96});
  ASSERT_EQ(kinds(program), (std::vector<Kind>{Kind::kArrive, Kind::kAwait, Kind::kAwait, Kind::kReduce,
                                               Kind::kSignal, Kind::kWait, Kind::kWait}));
  EXPECT_EQ(program.instructions[1].peer, 2);
  EXPECT_EQ(program.instructions[2].peer, 0);
  const Instruction& reduce = program.instructions[3];
  EXPECT_EQ(reduce.destinations, 3);
  EXPECT_EQ(reduce.sources, 3);
  for (int k = 0; k < 6; ++k) {
    const Operand& operand = program.operands[reduce.first + k];
    EXPECT_EQ(operand.owner, k % 3);
    EXPECT_EQ(operand.space, k < 3 ? Space::kOutput : Space::kInput);
    EXPECT_EQ(operand.base, 128u);
    EXPECT_EQ(operand.length, 128u);
    EXPECT_EQ(operand.ring, 0);
  }
  EXPECT_EQ(program.scratch_bytes, 0u);
  EXPECT_TRUE(program.reads_peer_input && program.writes_peer_output);
}

TEST(Lower, TwoShotLoopsOverChunksWithTwoMoreTripsThanChunks) {
  // Slices of 192, 192 and 116 bytes.
  const Binding binding{.rank = 1, .world_size = 3, .element_size = 4, .count = 125, .chunk_bytes = 64};
  const Program program = lowered(all_reduce_two_shot(), binding);
  const Instruction& loop = program.instructions[3];
  ASSERT_EQ(loop.kind, Kind::kLoop);
  EXPECT_EQ(loop.chunks, 3u);
  EXPECT_EQ(loop.trips, 5u);
  EXPECT_EQ(program.instructions.back().kind, Kind::kEndLoop);
  EXPECT_EQ(program.instructions.back().target, 3u);
  EXPECT_EQ(program.scratch_bytes, 2u * 64 * 3);
  const Instruction& copy_in = program.instructions[8];
  ASSERT_EQ(copy_in.kind, Kind::kCopy);
  const Operand& staged = program.operands[copy_in.first];
  EXPECT_EQ(staged.base, 2u * 64 * 2) << "the piece of block 2, which rank 1 copies first, lies third";
  EXPECT_EQ(staged.ring, 2);
  EXPECT_EQ(staged.ring_stride, 64u);
  EXPECT_EQ(staged.length, 116u);
}

TEST(Lower, ScratchOfShortVectorsIsShort) {
  const Program program = lowered(all_reduce_two_shot(), {.world_size = 4, .count = 64});
  EXPECT_EQ(program.scratch_bytes, 64u * 2 * 4) << "slices of 64 bytes in chunks of 256 KiB";
}

// A step must mean the same on all ranks, whatever each of them skips.
TEST(Lower, StepsRiseAndEndEqualOnAllRanks) {
  for (const Algorithm& algorithm : algorithms()) {
    std::set<uint32_t> last_steps;
    for (int rank = 0; rank < 5; ++rank) {
      const Program program = lowered(
          algorithm.make(), {.rank = rank, .world_size = 5, .root = 4, .count = 777, .chunk_bytes = 128});
      uint32_t last = 0, trips = 1;
      for (const Instruction& i : program.instructions) {
        if (i.kind == Kind::kLoop) trips = i.trips;
        if (i.kind == Kind::kEndLoop) trips = 1;
        if (i.kind != Kind::kSignal) continue;
        EXPECT_GT(i.step, last) << algorithm.name;
        EXPECT_TRUE(trips == 1 || i.step_stride > 0) << algorithm.name;
        last = i.step + (trips - 1) * i.step_stride;
      }
      if (last > 0) last_steps.insert(last);
    }
    EXPECT_LE(last_steps.size(), 1u) << name_of(algorithm.collective) << " " << algorithm.name;
  }
}

TEST(Lower, AnUnrolledWaitForAnEarlierIterationIsSkippedWhereThereIsNone) {
  Plan plan;
  plan.loops = {
      statements::ring_steps({statements::signal(), statements::lagging(1, statements::wait_others())})};
  const Program program = lowered(plan, {.world_size = 3, .count = 1});
  ASSERT_EQ(kinds(program), (std::vector<Kind>{Kind::kSignal, Kind::kSignal, Kind::kWait, Kind::kWait}));
  EXPECT_EQ(program.instructions[1].step, 2u);
  EXPECT_EQ(program.instructions[2].step, 1u);
}

TEST(Lower, NothingIsMovedForNoElements) {
  for (const Algorithm& algorithm : algorithms()) {
    const Program program = lowered(algorithm.make(), {.rank = 1, .world_size = 3, .count = 0});
    EXPECT_TRUE(program.operands.empty()) << algorithm.name;
    EXPECT_EQ(program.scratch_bytes, 0u);
  }
}

TEST(Lower, BinomialTreeOfFiveRanksRootedAtThree) {
  // Relative ranks 0..4 are ranks 3, 4, 0, 1, 2; edges from step 2 down: 0-4, 0-2, 0-1, 2-3.
  const std::map<int, std::vector<int>> children = {{3, {2, 0, 4}}, {4, {}}, {0, {1}}, {1, {}}, {2, {}}};
  const std::map<int, int> parent = {{4, 3}, {0, 3}, {1, 0}, {2, 3}};
  for (int rank = 0; rank < 5; ++rank) {
    const Program program =
        lowered(broadcast_tree(), {.rank = rank, .world_size = 5, .root = 3, .count = 10});
    std::vector<int> sent;
    for (const Instruction& i : program.instructions) {
      if (i.kind == Kind::kSend) sent.push_back(i.peer);
      if (i.kind == Kind::kReceive) {
        EXPECT_TRUE(sent.empty());
        EXPECT_EQ(i.peer, parent.at(rank));
      }
    }
    EXPECT_EQ(sent, children.at(rank)) << rank;
  }
}

TEST(Lower, RefusesWhatCannotBeBound) {
  const Plan plan = all_reduce_two_shot();
  const auto code = [&](const Binding& binding) { return lower(plan, binding).status().code(); };
  EXPECT_EQ(code({.rank = 3, .world_size = 3}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.rank = -1, .world_size = 3}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.world_size = 0}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.world_size = 100000}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.world_size = 3, .root = 3}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.world_size = 3, .counts = {1, 2}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.chunk_bytes = 0}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.chunk_bytes = 100}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.element_size = 3}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.world_size = 2, .count = SIZE_MAX / 2}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.world_size = 2, .count = size_t{1} << 42, .chunk_bytes = 64}), ErrorCode::kInvalidArgument)
      << "more steps than a counter holds";
  EXPECT_NE(lower(plan, {.world_size = 3, .root = 7}).status().message().find("root 7"), std::string::npos);
}

TEST(Lower, RefusesMalformedPlans) {
  using namespace statements;
  const Binding binding{.world_size = 2, .count = 100};
  const auto code_of = [&](Statement statement) {
    Plan plan;
    plan.scratch = {{.name = "chunks", .per_rank = true}};
    plan.loops = {once({std::move(statement)})};
    return lower(plan, binding).status().code();
  };
  EXPECT_EQ(code_of(copy(whole(Space::kOutput), block(Space::kInput, kMyself, kMyself))),
            ErrorCode::kInternal)
      << "lengths differ";
  EXPECT_EQ(code_of(copy(whole(Space::kScratch, kMyself, 1), whole(Space::kInput))), ErrorCode::kInternal)
      << "no such region";
  EXPECT_EQ(code_of(copy(block(Space::kScratch, kMyself, kMyself), block(Space::kInput, kMyself, kMyself))),
            ErrorCode::kInternal)
      << "chunks outside of a loop over chunks";
  EXPECT_EQ(code_of(reduce({}, {whole(Space::kInput)})), ErrorCode::kInternal);
  EXPECT_EQ(code_of({.action = Action::kCopy, .sources = {whole(Space::kInput)}}), ErrorCode::kInternal);
}

}  // namespace
}  // namespace collective_ops
