#include "memory/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "child.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace collective_ops {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

size_t resident_bytes(const SharedSegment& segment) {
  struct stat about {};
  ::fstat(segment.fd(), &about);
  return static_cast<size_t>(about.st_blocks) * 512;
}

TEST(SharedSegment, IsZeroedRoundedAndAligned) {
  auto small = SharedSegment::create(1, "test");
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(small->size(), 4096u);
  EXPECT_EQ(small->data()[4095], std::byte{0});
  auto large = SharedSegment::create(3 * kMiB, "test");
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(large->size(), 4 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large->data()) % (2 * kMiB), 0u);
  EXPECT_TRUE(SharedSegment::create(0, "test").ok());
}

TEST(SharedSegment, IsSharedAndCannotBeResized) {
  auto ours = SharedSegment::create(2 * kMiB, "test");
  ASSERT_TRUE(ours.ok());
  auto theirs = SharedSegment::map(::dup(ours->fd()));
  ASSERT_TRUE(theirs.ok()) << theirs.status().message();
  EXPECT_EQ(theirs->size(), ours->size());
  ours->data()[kMiB] = std::byte{7};
  EXPECT_EQ(theirs->data()[kMiB], std::byte{7});
  EXPECT_NE(::ftruncate(theirs->fd(), 0), 0);
  EXPECT_NE(::ftruncate(theirs->fd(), 4 * kMiB), 0);
  EXPECT_EQ(::fcntl(ours->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(SharedSegment, MapRefusesWhatAPeerCouldShrink) {
  const int unsealed = ::memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(unsealed, 4096), 0);
  EXPECT_EQ(SharedSegment::map(unsealed).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(::fcntl(unsealed, F_GETFD), -1);  // taken over and closed
  EXPECT_EQ(SharedSegment::map(::open("/dev/null", O_RDWR)).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(SharedSegment::map(-1).ok());
}

// KiB of this process's mapping at `begin` that huge pages hold.
size_t huge_kib(const std::byte* begin) {
  std::ifstream file("/proc/self/smaps");
  std::string line;
  for (bool here = false; std::getline(file, line);) {
    if (line.find('-') < line.find(' ')) {
      here = std::stoull(line, nullptr, 16) == reinterpret_cast<uintptr_t>(begin);
    } else if (here && line.starts_with("ShmemPmdMapped:")) {
      return std::stoull(line.substr(line.find(':') + 1));
    }
  }
  return 0;
}

TEST(SharedSegment, PopulateTakesHugePagesWhereTheSystemGivesThem) {
  auto small_pages = SharedSegment::create(4 * kMiB, "test");
  ASSERT_TRUE(small_pages.ok());
  std::memset(small_pages->data(), 1, 4 * kMiB);
  if (::madvise(small_pages->data(), 4 * kMiB, MADV_COLLAPSE) != 0) GTEST_SKIP() << std::strerror(errno);
  auto segment = SharedSegment::create(16 * kMiB, "test");
  ASSERT_TRUE(segment.ok());
  ASSERT_TRUE(segment->populate(0, 16 * kMiB).ok());
  EXPECT_EQ(huge_kib(segment->data()), 16u * 1024);
}

TEST(SharedSegment, PopulateTakesPagesAndDiscardGivesThemBack) {
  auto segment = SharedSegment::create(16 * kMiB, "test");
  ASSERT_TRUE(segment.ok());
  auto peer = SharedSegment::map(::dup(segment->fd()));
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(resident_bytes(*segment), 0u);
  segment->data()[5] = std::byte{1};
  ASSERT_TRUE(segment->populate(0, 9 * kMiB + 1).ok());
  EXPECT_EQ(segment->data()[5], std::byte{1});
  EXPECT_GE(resident_bytes(*segment), 9 * kMiB + 4096);
  EXPECT_EQ(peer->data()[5], std::byte{1});
  segment->discard(0, segment->size());
  EXPECT_EQ(resident_bytes(*segment), 0u);  // although the peer maps it
  EXPECT_EQ(peer->data()[5], std::byte{0});
  EXPECT_EQ(segment->populate(16 * kMiB, 1).code(), ErrorCode::kInternal);
  EXPECT_EQ(segment->populate(4096, SIZE_MAX).code(), ErrorCode::kInternal);
}

TEST(SharedSegment, MovesLeaveOneOwner) {
  auto made = SharedSegment::create(4096, "test");
  ASSERT_TRUE(made.ok());
  SharedSegment first = std::move(*made);
  SharedSegment second;
  second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);
  second.data()[0] = std::byte{3};
  second.close_fd();
  EXPECT_EQ(second.fd(), -1);
  EXPECT_EQ(second.data()[0], std::byte{3});
}

}  // namespace
}  // namespace collective_ops
