#include "memory/shared_heap.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "child.h"
#include "memory/free_list.h"
#include "memory/segment_table.h"
#include "memory/shared_segment.h"

namespace collective_ops {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
using Buffer = std::shared_ptr<SharedBuffer>;

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

Buffer take(SharedHeap& heap, size_t bytes) {
  auto buffer = heap.allocate(bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status().message();
  return buffer.ok() ? *buffer : nullptr;
}

TEST(FreeList, GivesLowestFirstAndMergesNeighbours) {
  FreeList list(1024);
  EXPECT_EQ(list.take(100, 1), 0u);
  EXPECT_EQ(list.take(64, 64), 128u);
  EXPECT_EQ(list.take(28, 1), 100u);
  EXPECT_EQ(list.take(2000, 1), std::nullopt);
  list.give(128, 64);
  list.give(0, 100);
  EXPECT_EQ(list.range_count(), 2u);
  EXPECT_FALSE(list.all_free());
  list.give(100, 28);
  EXPECT_TRUE(list.all_free());
}

TEST(SharedHeap, AlignsAndKeepsSizes) {
  SharedHeap heap;
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{63}, size_t{65}, size_t{4097}, 2 * kMiB, 40 * kMiB + 3}) {
    const Buffer buffer = take(heap, bytes);
    EXPECT_EQ(buffer->size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % (bytes >= 2 * kMiB ? 4096 : 64), 0u);
    std::memset(buffer->data(), 0x5a, bytes);
  }
}

TEST(SharedHeap, FindsPlacesOfItsMemoryOnly) {
  SharedHeap heap;
  const Buffer buffer = take(heap, 1000);
  auto* data = static_cast<std::byte*>(buffer->data());
  const auto place = heap.find(data + 10, 990);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->segment_id, 1u);
  EXPECT_EQ(heap.segment_data(place->segment_id) + place->offset, data + 10);
  const int local = 0;
  EXPECT_FALSE(heap.find(&local, sizeof(local)).has_value());
  EXPECT_FALSE(heap.find(nullptr, 0).has_value());
  EXPECT_FALSE(heap.find(data, size_t{1} << 40).has_value());
  EXPECT_FALSE(heap.find(data, SIZE_MAX).has_value());
  // What a peer maps shows the same bytes at the same offset.
  auto fd = heap.segment_fd(place->segment_id);
  ASSERT_TRUE(fd.ok());
  auto peer = SharedSegment::map(fd->release());
  ASSERT_TRUE(peer.ok());
  data[10] = std::byte{42};
  EXPECT_EQ(peer->data()[place->offset], std::byte{42});
  EXPECT_EQ(heap.segment_fd(99).status().code(), ErrorCode::kInvalidArgument);
}

TEST(SharedHeap, LiveBuffersNeverOverlap) {
  SharedHeap heap;
  std::mt19937 random(7);
  std::vector<std::pair<Buffer, unsigned char>> live;
  for (int step = 0; step < 3000; ++step) {
    if (live.size() > 60 || (!live.empty() && random() % 2 == 0)) {
      const size_t index = random() % live.size();
      const auto& [buffer, mark] = live[index];
      const auto* bytes = static_cast<const unsigned char*>(buffer->data());
      for (size_t i = 0; i < buffer->size(); ++i) ASSERT_EQ(bytes[i], mark);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
    } else {
      const auto mark = static_cast<unsigned char>(random());
      const Buffer buffer = take(heap, random() % 5000);
      std::memset(buffer->data(), mark, buffer->size());
      live.emplace_back(buffer, mark);
    }
  }
  live.clear();
  EXPECT_EQ(heap.usage().used, 0u);
}

TEST(SharedHeap, MemoryAndDescriptorsStayBoundedOverVaryingSizes) {
  SharedHeap heap;
  const size_t before = open_descriptors();
  std::mt19937 random(3);
  size_t most = 0;
  for (int step = 0; step < 400; ++step) {
    const Buffer one = take(heap, random() % (40 * kMiB));
    const Buffer two = take(heap, random() % (3 * kMiB));
    most = std::max(most, heap.usage().mapped);
  }
  // Live at most 43 MiB: empty segments up to 64 MiB, and what is in use, rounded up.
  EXPECT_LE(most, 64 * kMiB + 2 * (43 + 32) * kMiB);
  EXPECT_LE(open_descriptors(), before + heap.usage().segments);
  heap.trim();
  EXPECT_EQ(heap.usage().mapped, 0u);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(SharedHeap, ReusesEmptySegmentsAndNeverAnId) {
  SharedHeap heap;
  const void* first = take(heap, 40 * kMiB)->data();
  const Buffer again = take(heap, 40 * kMiB);
  EXPECT_EQ(again->data(), first);
  EXPECT_EQ(heap.find(again->data(), 1)->segment_id, 1u);
  std::set<uint32_t> seen = {1};
  for (int round = 0; round < 5; ++round) {
    Buffer other = take(heap, 40 * kMiB);
    EXPECT_TRUE(seen.insert(heap.find(other->data(), 1)->segment_id).second);
    const void* place = other->data();
    other.reset();
    heap.trim();
    EXPECT_FALSE(heap.find(place, 1).has_value());
  }
}

TEST(SharedHeap, ABufferAloneKeepsItsPagesForWhoeverMapsThem) {
  SharedHeap heap;
  const Buffer before = take(heap, 100);
  auto alone = heap.allocate_alone(5000);
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  auto* data = static_cast<unsigned char*>((*alone)->data());
  const auto place = heap.find(data, 5000);
  ASSERT_TRUE(place);
  EXPECT_NE(place->segment_id, heap.find(before->data(), 100)->segment_id);
  EXPECT_EQ(place->offset, 0u);
  EXPECT_EQ(data[4999], 0);
  std::memset(data, 7, 5000);
  auto fd = heap.segment_fd(place->segment_id);
  ASSERT_TRUE(fd.ok());
  auto peers = SharedSegment::map(fd->release());
  ASSERT_TRUE(peers.ok());
  const Buffer small = take(heap, 64);  // never from the pages of another
  EXPECT_NE(heap.find(small->data(), 64)->segment_id, place->segment_id);
  alone->reset();
  EXPECT_FALSE(heap.find(data, 1));
  EXPECT_EQ(heap.usage().segments, 1u);
  for (int i = 0; i < 20; ++i) std::memset(take(heap, 5000)->data(), 9, 5000);
  EXPECT_EQ(std::to_integer<int>(peers->data()[0]), 7);
  EXPECT_EQ(std::to_integer<int>(peers->data()[4999]), 7);
}

TEST(SharedHeap, FindIsSafeWhileSegmentsComeAndGo) {
  SharedHeap heap;
  const Buffer kept = take(heap, 100);
  const SegmentOffset expected = *heap.find(kept->data(), 100);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    while (!stop.load()) {
      const auto place = heap.find(kept->data(), 100);
      if (!place || place->segment_id != expected.segment_id || place->offset != expected.offset) ++wrong;
      if (heap.find(&stop, 1)) ++wrong;
    }
  });
  for (int round = 0; round < 200; ++round) {
    Buffer large = take(heap, 17 * kMiB);
    const auto place = heap.find(large->data(), 17 * kMiB);
    EXPECT_TRUE(place.has_value());
    large.reset();
    if (round % 4 == 0) heap.trim();
  }
  stop = true;
  reader.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(SharedHeap, ThreadsAllocateAtTheSameTime) {
  SharedHeap heap;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int step = 0; step < 300; ++step) {
        const Buffer buffer = take(heap, 1 + random() % 20000);
        std::memset(buffer->data(), static_cast<int>(t), buffer->size());
        std::this_thread::yield();
        const auto* bytes = static_cast<const unsigned char*>(buffer->data());
        if (bytes[0] != t || bytes[buffer->size() - 1] != t) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(heap.usage().used, 0u);
}

TEST(SharedHeap, AChildHandsOutNothingOfItsParents) {
  SharedHeap& heap = SharedHeap::instance();
  const Buffer buffer = take(heap, 1000);
  std::memset(buffer->data(), 1, 1000);
  EXPECT_EQ(in_child([&] {
              Buffer inherited = buffer;
              const bool refused = heap.forked() &&
                                   heap.allocate(10).status().code() == ErrorCode::kNotInitialized &&
                                   !heap.find(buffer->data(), 1) && !heap.segment_fd(1).ok();
              SharedHeap& own = SharedHeap::instance();
              auto fresh = own.allocate(1000);
              const_cast<Buffer&>(buffer).reset();
              inherited.reset();  // the last reference in this process: must not free it in the parent
              heap.trim();
              return refused && &own != &heap && fresh.ok() && own.find((*fresh)->data(), 1000) &&
                     !own.forked();
            }),
            0);
  EXPECT_FALSE(heap.forked());
  EXPECT_TRUE(heap.find(buffer->data(), 1000).has_value());
  EXPECT_EQ(static_cast<unsigned char*>(buffer->data())[999], 1);
}

TEST(SharedHeap, WhatDoesNotFitIsAnErrorAndEmptySegmentsMakeRoom) {
  EXPECT_EQ(in_child([] {
              limit_address_space(330 * kMiB);
              SharedHeap heap;
              Buffer first = take(heap, 100 * kMiB);
              Buffer second = take(heap, 100 * kMiB);
              if (heap.allocate(300 * kMiB).status().code() != ErrorCode::kOutOfMemory) return false;
              first.reset();
              second.reset();
              return heap.allocate(300 * kMiB).ok() &&
                     heap.allocate(SIZE_MAX).status().code() == ErrorCode::kInvalidArgument;
            }),
            0);
}

// A real cgroup of 64 MiB, where this machine lets us make one: a page too many there is SIGKILL.
TEST(SharedHeap, ASmallMemoryCgroupRefusesInsteadOfKilling) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory fills the cgroup";
  namespace fs = std::filesystem;
  std::ifstream cgroups("/proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(cgroups, line);) {
    const size_t at = line.find(":memory:");
    if (at != std::string::npos) path = line.substr(at + 8);
  }
  const std::string folder = "/sys/fs/cgroup/memory" + path + "/heap-test-" + std::to_string(::getpid());
  std::error_code error;
  if (path.empty() || !fs::create_directory(folder, error)) {
    GTEST_SKIP() << "no memory cgroup (version 1) can be made here";
  }
  std::ofstream(folder + "/memory.limit_in_bytes") << 64 * kMiB;
  const int status = in_child([&] {
    std::ofstream(folder + "/cgroup.procs") << ::getpid() << std::flush;
    SharedHeap heap;
    std::vector<Buffer> all;
    for (;;) {
      auto buffer = heap.allocate(3 * kMiB);
      if (!buffer.ok()) {
        return all.size() >= 10 && buffer.status().code() == ErrorCode::kOutOfMemory &&
               buffer.status().message().find("memory cgroup") != std::string::npos;
      }
      std::memset((*buffer)->data(), 1, 3 * kMiB);
      all.push_back(*buffer);
    }
  });
  fs::remove(folder, error);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace collective_ops
