#include "bootstrap/peer_segments.h"

#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "ranks.h"

namespace collective_ops {
namespace {

using ::testing::Each;
constexpr size_t kMiB = size_t{1} << 20;

int64_t soon() { return monotonic_ns() + 20'000'000'000; }

size_t mappings_of_segments() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("memfd:collective-ops") != std::string::npos;
  return count;
}

// Where rank r says, in the control segment, its buffer lies.
SegmentOffset* place_of(const HostGroup& group, int rank) {
  return reinterpret_cast<SegmentOffset*>(group.control.data() + 64) + rank;
}

TEST(PeerSegments, EveryRankReadsAndWritesTheOthersBuffers) {
  EXPECT_THAT(
      run_group(4,
                [](HostGroup& group) -> std::string {
                  SharedHeap& heap = SharedHeap::instance();
                  PeerSegments segments(group.mailbox.get(), group.rank, 4);
                  auto buffer = heap.allocate(1000);
                  if (!buffer.ok()) return text_of(buffer.status());
                  auto* mine = static_cast<unsigned char*>((*buffer)->data());
                  std::memset(mine, 0, 1000);
                  *place_of(group, group.rank) = *heap.find(mine, 1000);
                  Status status = segments.publish(place_of(group, group.rank)->segment_id);
                  if (!status.ok()) return text_of(status);
                  meet(group);
                  for (int rank = 0; rank < 4; ++rank) {
                    const SegmentOffset place = *place_of(group, rank);
                    auto base = segments.address(rank, place.segment_id, soon());
                    if (!base.ok()) return text_of(base.status());
                    if (rank != group.rank && segments.known(rank, place.segment_id) != *base)
                      return "not remembered";
                    if (rank != group.rank && segments.size_of(rank, place.segment_id) < place.offset + 1000)
                      return "size";
                    reinterpret_cast<unsigned char*>(*base)[place.offset + static_cast<size_t>(group.rank)] =
                        'x';
                  }
                  meet(group);
                  for (int rank = 0; rank < 4; ++rank) {
                    if (mine[rank] != 'x') return "rank did not write";
                  }
                  if (!segments.publish(place_of(group, group.rank)->segment_id).ok())
                    return "publish is once";
                  if (group.mailbox->receive([](const Message&) { return true; }, 0).ok())
                    return "published twice";
                  meet(group);
                  return "ok";
                }),
      Each("ok"));
}

// A rank whose sizes vary releases segments; its peers' mappings and descriptors must not pile up.
TEST(PeerSegments, MappingsOfPeersStayBounded) {
  EXPECT_THAT(run_group(2,
                        [](HostGroup& group) -> std::string {
                          SharedHeap& heap = SharedHeap::instance();
                          PeerSegments segments(group.mailbox.get(), group.rank, 2);
                          uint32_t last = 0;
                          for (int round = 0; round < 60; ++round) {
                            auto buffer = heap.allocate(20 * kMiB + static_cast<size_t>(round) * kMiB / 4);
                            if (!buffer.ok()) return text_of(buffer.status());
                            *place_of(group, group.rank) = *heap.find((*buffer)->data(), 1);
                            if (round % 2 == group.rank)
                              static_cast<char*>((*buffer)->data())[0] = static_cast<char>(round);
                            Status status = segments.publish(place_of(group, group.rank)->segment_id);
                            if (!status.ok()) return text_of(status);
                            meet(group);
                            const SegmentOffset place = *place_of(group, 1 - group.rank);
                            auto base = segments.address(1 - group.rank, place.segment_id, soon());
                            if (!base.ok()) return text_of(base.status());
                            const char read = reinterpret_cast<char*>(*base)[place.offset];
                            if (round % 2 == 1 - group.rank && read != static_cast<char>(round))
                              return "wrong memory";
                            last = place.segment_id;
                            meet(group);
                            buffer = Status(ErrorCode::kInternal, "freed");
                            if (round % 3 == 0) heap.trim();
                          }
                          if (last < 10) return "the test made too few segments";
                          const size_t mapped = mappings_of_segments();
                          return mapped <= 10 ? "ok"
                                              : fmt::format("{} mappings after {} segments", mapped, last);
                        }),
              Each("ok"));
}

TEST(PeerSegments, WhatNeverComesIsATimeoutThatNamesTheRank) {
  EXPECT_THAT(run_group(2,
                        [](HostGroup& group) -> std::string {
                          PeerSegments segments(group.mailbox.get(), group.rank, 2);
                          auto missing = segments.address(1 - group.rank, 5, monotonic_ns() + 1'000'000);
                          if (missing.status().code() != ErrorCode::kTimeout) return "no timeout";
                          if (missing.status().message().find(fmt::format("rank {}", 1 - group.rank)) ==
                              std::string::npos)
                            return "no rank";
                          if (segments.address(9, 1, soon()).ok() || segments.address(0, 0, soon()).ok())
                            return "no such rank or segment";
                          if (segments.publish(77).code() != ErrorCode::kInvalidArgument)
                            return "no such segment of ours";
                          if (segments.size_of(1 - group.rank, 5) != 0) return "size of nothing";
                          meet(group);
                          return "ok";
                        }),
              Each("ok"));
}

TEST(PeerSegments, ARankAloneKnowsItsOwn) {
  SharedHeap heap;
  PeerSegments segments(nullptr, 0, 1, heap);
  auto buffer = heap.allocate(10);
  ASSERT_TRUE(buffer.ok());
  const auto place = heap.find((*buffer)->data(), 10);
  EXPECT_TRUE(segments.publish(place->segment_id).ok());
  auto base = segments.address(0, place->segment_id, 0);
  ASSERT_TRUE(base.ok());
  EXPECT_EQ(*base + place->offset, (*buffer)->data());
}

}  // namespace
}  // namespace collective_ops
