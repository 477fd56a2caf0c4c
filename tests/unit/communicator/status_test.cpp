// read_status: what a group's memory says, and bytes that say nonsense.
#include "communicator/status.h"

#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "transport/shm/group_memory.h"

namespace collective_ops {
namespace {

using shm::GroupMemory;
using shm::Signature;

// The observed part of a group's memory, aligned like the real one.
class Memory {
 public:
  explicit Memory(int world_size)
      : raw_(GroupMemory::bytes_observed(world_size) + kPage),
        base_(raw_.data() + (kPage - reinterpret_cast<uintptr_t>(raw_.data()) % kPage)),
        group(base_, world_size) {}

  std::span<std::byte> bytes() { return {base_, GroupMemory::bytes_observed(group.world_size())}; }

  void issue(int rank, uint64_t sequence, Collective collective, uint64_t count) {
    const auto signature = Signature::of(static_cast<uint32_t>(sequence), collective, DataType::kFloat32,
                                         ReduceOp::kSum, count, 0);
    group.state(rank).issued = sequence;
    group.line(rank, sequence).shape = signature.shape;
    group.line(rank, sequence).head = signature.head;
  }

 private:
  static constexpr size_t kPage = 4096;
  std::vector<std::byte> raw_;
  std::byte* base_;

 public:
  GroupMemory group;
};

std::string problem(std::span<const std::byte> bytes) {
  const auto status = read_status(bytes);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.status().code(), ErrorCode::kInvalidArgument);
  return status.status().message();
}

TEST(ReadStatus, EveryRankIsDescribed) {
  Memory memory(5);
  for (int rank = 0; rank < 4; ++rank) memory.group.introduce(rank, 70 + rank, "id job");
  for (int rank = 0; rank < 3; ++rank) memory.issue(rank, 12, Collective::kAllReduce, 1000);
  memory.group.state(0).finished = memory.group.state(1).finished = 11;
  memory.group.state(0).waits_for = 2;
  memory.group.state(0).begun_ns = 99;
  memory.group.state(2).finished = 12;
  memory.group.state(3).left = 1;

  const auto status = read_status(memory.bytes());
  ASSERT_TRUE(status.ok()) << status.status().message();
  EXPECT_EQ(status->job, "id job");
  EXPECT_TRUE(status->failure.ok());
  ASSERT_EQ(status->ranks.size(), 5u);
  const auto& ranks = status->ranks;
  EXPECT_EQ(ranks[0].activity, Activity::kWaiting);
  EXPECT_EQ(ranks[0].waits_for, 2);
  EXPECT_EQ(ranks[0].since_ns, 99);
  EXPECT_EQ(ranks[0].pid, 70);
  EXPECT_EQ(ranks[0].issued, 12u);
  EXPECT_EQ(ranks[0].finished, 11u);
  EXPECT_EQ(ranks[0].call, "all_reduce of 1000 float32, op sum");
  EXPECT_EQ(ranks[1].activity, Activity::kBusy);
  EXPECT_EQ(ranks[1].waits_for, -1);
  EXPECT_EQ(ranks[2].activity, Activity::kOutside);
  EXPECT_EQ(ranks[3].activity, Activity::kLeft);
  EXPECT_EQ(ranks[3].call, "");
  EXPECT_EQ(ranks[4].activity, Activity::kAbsent);
}

TEST(ReadStatus, AGroupOfSomeRanks) {
  Memory memory(2);
  const int ranks[] = {6, 4};
  memory.group.name_group(77, "tp", ranks);
  memory.group.introduce(0, 70, "id job");
  const auto status = read_status(memory.bytes());
  ASSERT_TRUE(status.ok()) << status.status().message();
  EXPECT_EQ(status->id, 77u);
  EXPECT_EQ(status->name, "tp");
  EXPECT_EQ(status->ranks[0].world_rank, 6);
  EXPECT_EQ(status->ranks[1].world_rank, 4);
  EXPECT_EQ(status->ranks[1].activity, Activity::kAbsent);
  memory.group.note(1).world_rank = -3;
  EXPECT_NE(problem(memory.bytes()).find("rank -3 of its job"), std::string::npos);
}

TEST(ReadStatus, AGroupThatIsNotThereYet) {
  Memory memory(2);
  const auto status = read_status(memory.bytes());
  ASSERT_TRUE(status.ok());
  EXPECT_TRUE(status->ranks.empty());
}

TEST(ReadStatus, TheReasonOfABrokenGroup) {
  Memory memory(2);
  memory.group.introduce(0, 70, "job");
  (void)memory.group.break_with({ErrorCode::kTimeout, "rank 0 waited"});
  auto status = read_status(memory.bytes());
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->failure.code(), ErrorCode::kTimeout);
  EXPECT_EQ(status->failure.message(), "rank 0 waited");

  auto& record = memory.group.header().failure;
  std::memset(record.text, 'x', sizeof(record.text));  // without an end
  EXPECT_EQ(read_status(memory.bytes())->failure.message().size(), sizeof(record.text));
  for (const uint32_t code : {0u, 1000u}) {
    record.code = code;
    EXPECT_EQ(read_status(memory.bytes())->failure.code(), ErrorCode::kGroupBroken);
  }
  record.code = static_cast<uint32_t>(ErrorCode::kTimeout);
  record.state = 1;  // the writer died in the middle
  EXPECT_EQ(read_status(memory.bytes())->failure.code(), ErrorCode::kGroupBroken);
}

TEST(ReadStatus, ALongJobIsCut) {
  Memory memory(1);
  memory.group.introduce(0, 70, std::string(4096, 'j'));
  EXPECT_EQ(read_status(memory.bytes())->job, std::string(shm::kJobBytes - 1, 'j'));
  std::memset(memory.group.header().job, 'k', shm::kJobBytes);
  EXPECT_EQ(read_status(memory.bytes())->job, std::string(shm::kJobBytes, 'k'));
}

TEST(ReadStatus, ACallThatIsNotTheLastIsNotShown) {
  Memory memory(1);
  memory.group.introduce(0, 70, "job");
  memory.issue(0, 5, Collective::kBarrier, 0);
  EXPECT_EQ(read_status(memory.bytes())->ranks[0].call, "barrier");
  memory.group.state(0).issued = 9;  // same line, not announced yet
  EXPECT_EQ(read_status(memory.bytes())->ranks[0].call, "");
  memory.group.line(0, 9).head = 9 | uint64_t{0x77} << 32;  // no such collective
  EXPECT_EQ(read_status(memory.bytes())->ranks[0].call, "");
  memory.group.line(0, 9).head = Signature::of_failed(9).head;
  EXPECT_NE(read_status(memory.bytes())->ranks[0].call.find("refused"), std::string::npos);
  memory.group.state(0).finished = 10;  // copied while the rank went on
  EXPECT_EQ(read_status(memory.bytes())->ranks[0].finished, 9u);
}

TEST(ReadStatus, DamagedBytesAreNamed) {
  Memory memory(3);
  for (int rank = 0; rank < 3; ++rank) memory.group.introduce(rank, 70, "job");
  ASSERT_TRUE(read_status(memory.bytes()).ok());

  EXPECT_NE(problem(memory.bytes().first(100)).find("no header"), std::string::npos);
  EXPECT_NE(problem(memory.bytes().first(memory.bytes().size() - 1)).find("3 ranks need"), std::string::npos);
  EXPECT_NE(problem({}).find("0 bytes"), std::string::npos);

  auto& header = memory.group.header();
  for (const uint32_t size : {0u, 1025u, 0xffffffffu}) {
    header.world_size = size;
    EXPECT_NE(problem(memory.bytes()).find(std::to_string(size)), std::string::npos);
  }
  header.world_size = 1024;  // possible, but not with these bytes
  EXPECT_NE(problem(memory.bytes()).find("1024 ranks need"), std::string::npos);
  header.world_size = 3;
  header.layout_version = 77;
  EXPECT_NE(problem(memory.bytes()).find("layout 77"), std::string::npos);
  header.layout_version = shm::kGroupLayoutVersion;
  for (const int peer : {-2, 3, 1 << 30}) {
    memory.group.state(1).waits_for = peer;
    EXPECT_NE(problem(memory.bytes()).find("rank 1"), std::string::npos);
  }
  memory.group.state(1).waits_for = -1;
  memory.group.state(2).pid = -5;
  EXPECT_NE(problem(memory.bytes()).find("process -5"), std::string::npos);
  memory.group.state(2).pid = 5;
  header.magic = 1;
  EXPECT_NE(problem(memory.bytes()).find("mark"), std::string::npos);
}

// The sanitizer builds see a read outside of the bytes; here it is that every answer is whole.
TEST(ReadStatus, RandomBytesGiveAnAnswerOrAnError) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    Memory memory(4);
    memory.group.introduce(0, 70, "job");
    const auto bytes = memory.bytes();
    for (int i = 0; i < 200; ++i) {
      // Not the mark and the layout, or nothing behind them would ever be looked at.
      bytes[16 + random() % (bytes.size() - 16)] = static_cast<std::byte>(random());
    }
    const auto status = read_status(bytes.first(round % 3 == 0 ? random() % bytes.size() : bytes.size()));
    if (!status.ok()) {
      EXPECT_EQ(status.status().code(), ErrorCode::kInvalidArgument);
      continue;
    }
    EXPECT_EQ(status->ranks.size(), 4u);
    for (const RankStatus& rank : status->ranks) EXPECT_LE(rank.finished, rank.issued);
  }
}

TEST(ReadStatus, AllSizesFit) {
  for (const int world_size : {1, 8, shm::kMaxRanks}) {
    EXPECT_LE(GroupMemory::bytes_observed(world_size), status_bytes());
    EXPECT_LE(GroupMemory::bytes_observed(world_size), GroupMemory::bytes_needed(world_size));
  }
}

}  // namespace
}  // namespace collective_ops
