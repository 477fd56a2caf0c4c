#include "bootstrap/peer_segments.h"

#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

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
  EXPECT_THAT(run_group(4,
                        [](HostGroup& group) -> std::string {
                          SharedHeap& heap = SharedHeap::instance();
                          PeerSegments segments(group.mailbox.get(), group.rank, 4);
                          auto buffer = heap.allocate(1000);
                          if (!buffer.ok()) return text_of(buffer.status());
                          auto* mine = static_cast<unsigned char*>((*buffer)->data());
                          std::memset(mine, 0, 1000);
                          *place_of(group, group.rank) = *heap.find(mine, 1000);
                          const std::vector<int> all = {0, 1, 2, 3};
                          Status status = segments.publish(place_of(group, group.rank)->segment_id, all);
                          if (!status.ok()) return text_of(status);
                          meet(group);
                          mine[group.rank] = 'x';
                          for (int rank = 0; rank < 4; ++rank) {
                            if (rank == group.rank) continue;
                            const SegmentOffset place = *place_of(group, rank);
                            auto mapping = segments.map(rank, place.segment_id, soon());
                            if (!mapping.ok()) return text_of(mapping.status());
                            if (segments.known(rank, place.segment_id) != *mapping) return "not remembered";
                            if ((*mapping)->size() < place.offset + 1000) return "size";
                            (*mapping)->data()[place.offset + static_cast<size_t>(group.rank)] =
                                std::byte{'x'};
                          }
                          meet(group);
                          for (int rank = 0; rank < 4; ++rank) {
                            if (mine[rank] != 'x') return "rank did not write";
                          }
                          if (!segments.publish(place_of(group, group.rank)->segment_id, all).ok())
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
                            const int peers[] = {1 - group.rank};
                            Status status = segments.publish(place_of(group, group.rank)->segment_id, peers);
                            if (!status.ok()) return text_of(status);
                            meet(group);
                            const SegmentOffset place = *place_of(group, 1 - group.rank);
                            auto mapping = segments.map(1 - group.rank, place.segment_id, soon());
                            if (!mapping.ok()) return text_of(mapping.status());
                            const char read = static_cast<char>((*mapping)->data()[place.offset]);
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
                          auto missing = segments.map(1 - group.rank, 5, monotonic_ns() + 1'000'000);
                          if (missing.status().code() != ErrorCode::kTimeout) return "no timeout";
                          if (missing.status().message().find(fmt::format("rank {}", 1 - group.rank)) ==
                              std::string::npos)
                            return "no rank";
                          if (segments.map(9, 1, soon()).ok() || segments.map(0, 0, soon()).ok() ||
                              segments.map(group.rank, 1, soon()).ok())
                            return "no such rank or segment";
                          const int peers[] = {1 - group.rank};
                          if (segments.publish(77, peers).code() != ErrorCode::kInvalidArgument)
                            return "no such segment of ours";
                          if (segments.known(1 - group.rank, 5) != nullptr) return "nothing is known";
                          meet(group);
                          return "ok";
                        }),
              Each("ok"));
}

// Groups of one process share its mappings: what one of them takes from the mailbox, another one finds.
TEST(PeerSegments, ThreadsWaitForDifferentSegmentsAtOnce) {
  EXPECT_THAT(run_group(3,
                        [](HostGroup& group) -> std::string {
                          SharedHeap& heap = SharedHeap::instance();
                          PeerSegments segments(group.mailbox.get(), group.rank, 3);
                          constexpr int kBuffers = 4;
                          std::vector<std::shared_ptr<SharedBuffer>> buffers;
                          auto* ids = reinterpret_cast<uint32_t*>(group.control.data() + 1024);
                          for (int i = 0; i < kBuffers; ++i) {
                            auto buffer = heap.allocate(17 * kMiB);
                            if (!buffer.ok()) return text_of(buffer.status());
                            buffers.push_back(*buffer);
                            ids[group.rank * kBuffers + i] = heap.find(buffers.back()->data(), 1)->segment_id;
                          }
                          meet(group);
                          std::vector<std::string> answers(kBuffers, "ok");
                          std::vector<std::thread> threads;
                          const std::vector<int> peers = {(group.rank + 1) % 3, (group.rank + 2) % 3};
                          for (int i = 0; i < kBuffers; ++i) {
                            threads.emplace_back([&, i] {
                              const uint32_t mine = ids[group.rank * kBuffers + i];
                              if (Status status = segments.publish(mine, peers); !status.ok())
                                answers[static_cast<size_t>(i)] = text_of(status);
                              for (const int rank : peers) {
                                auto mapping = segments.map(rank, ids[rank * kBuffers + i], soon());
                                if (!mapping.ok())
                                  answers[static_cast<size_t>(i)] = text_of(mapping.status());
                              }
                            });
                          }
                          for (auto& thread : threads) thread.join();
                          meet(group);
                          for (const std::string& answer : answers) {
                            if (answer != "ok") return answer;
                          }
                          return segments.drops() == 0 ? "ok" : "dropped a segment that lives";
                        }),
              Each("ok"));
}

// A mapping outlives its release by the owner while somebody holds it.
TEST(PeerSegments, HeldMappingsStay) {
  EXPECT_THAT(run_group(2,
                        [](HostGroup& group) -> std::string {
                          SharedHeap& heap = SharedHeap::instance();
                          PeerSegments segments(group.mailbox.get(), group.rank, 2);
                          const int peers[] = {1 - group.rank};
                          PeerSegments::Mapping held;
                          for (int round = 0; round < 2; ++round) {
                            auto buffer = heap.allocate(20 * kMiB);
                            if (!buffer.ok()) return text_of(buffer.status());
                            *place_of(group, group.rank) = *heap.find((*buffer)->data(), 1);
                            Status status = segments.publish(place_of(group, group.rank)->segment_id, peers);
                            if (!status.ok()) return text_of(status);
                            meet(group);
                            auto mapping = segments.map(1 - group.rank,
                                                        place_of(group, 1 - group.rank)->segment_id, soon());
                            if (!mapping.ok()) return text_of(mapping.status());
                            if (round == 0) held = *mapping;
                            meet(group);
                            buffer = Status(ErrorCode::kInternal, "freed");
                            heap.trim();
                          }
                          if (segments.drops() != 1) return "the first one was released";
                          held->data()[20 * kMiB - 1] = std::byte{1};
                          return held.use_count() == 1 ? "ok" : "still kept elsewhere";
                        }),
              Each("ok"));
}

TEST(PeerSegments, ARankAloneTellsNobody) {
  SharedHeap heap;
  PeerSegments segments(nullptr, 0, 1, heap);
  auto buffer = heap.allocate(10);
  ASSERT_TRUE(buffer.ok());
  const int ranks[] = {0};
  EXPECT_TRUE(segments.publish(heap.find((*buffer)->data(), 10)->segment_id, ranks).ok());
  EXPECT_EQ(segments.map(0, 1, 0).status().code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace collective_ops
