#include "memory/headroom.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "child.h"
#include "memory/shared_segment.h"

namespace collective_ops {
namespace {

using ::testing::HasSubstr;
constexpr uint64_t kMiB = 1 << 20;

// A made-up tree of /proc and /sys.
class FakeRoot : public ::testing::Test {
 protected:
  FakeRoot() {
    std::string pattern = (std::filesystem::temp_directory_path() / "headroom-XXXXXX").string();
    root_ = ::mkdtemp(pattern.data());
    write("/proc/meminfo", "MemTotal:       8388608 kB\nMemFree:  100 kB\nMemAvailable:   4194304 kB\n");
  }
  ~FakeRoot() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void use_v2(const std::string& path) {
    write("/proc/self/cgroup", "0::" + path + "\n");
    write("/proc/self/mountinfo",
          "24 1 0:21 / /proc rw - proc proc rw\n30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 "
          "rw,nsdelegate\n");
  }
  const MemoryLimit* find(const std::vector<MemoryLimit>& limits, const std::string& name) {
    for (const auto& limit : limits) {
      if (limit.name == name) return &limit;
    }
    return nullptr;
  }

  std::string root_;
};

TEST_F(FakeRoot, ReadsEveryVersion2LimitUpTheTree) {
  use_v2("/pod/container");
  write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  write("/sys/fs/cgroup/pod/memory.max", "104857600\n");
  write("/sys/fs/cgroup/pod/memory.current", "62914560\n");
  write("/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 1048576\nactive_file 2097152\nfile 9\n");
  const auto limits = memory_limits(root_);
  ASSERT_EQ(find(limits, "memory cgroup /pod/container"), nullptr);
  const auto* pod = find(limits, "memory cgroup /pod");
  ASSERT_NE(pod, nullptr);
  EXPECT_EQ(pod->limit, 100 * kMiB);
  EXPECT_EQ(pod->used, 57 * kMiB);                                 // page cache left out
  EXPECT_TRUE(check_headroom(30 * kMiB, "a bucket", root_).ok());  // 43 MiB free, an eighth of 100 is kept
  const Status status = check_headroom(31 * kMiB, "a bucket", root_);
  EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(status.message(), HasSubstr("a bucket (31.0 MiB)"));
  EXPECT_THAT(status.message(), HasSubstr("memory cgroup /pod is 100.0 MiB with 57.0 MiB in use"));
  EXPECT_THAT(status.message(), HasSubstr("raise the memory limit"));
}

TEST_F(FakeRoot, ReadsVersion1WithTotalsOfChildren) {
  write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/jobs/a\n0::/\n");
  write("/proc/self/mountinfo",
        "31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "32 25 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,cpu,memory\n");
  write("/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "67108864\n");
  write("/sys/fs/cgroup/memory/jobs/a/memory.usage_in_bytes", "16777216\n");
  write("/sys/fs/cgroup/memory/jobs/a/memory.stat",
        "inactive_file 999999999\ntotal_inactive_file 4194304\ntotal_active_file 4194304\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const auto limits = memory_limits(root_);
  const auto* job = find(limits, "memory cgroup /jobs/a");
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(job->available(), 56 * kMiB);
  EXPECT_EQ(find(limits, "memory cgroup /"), nullptr);
  EXPECT_EQ(check_headroom(60 * kMiB, "x", root_).code(), ErrorCode::kOutOfMemory);
}

TEST_F(FakeRoot, FindsTheFolderThatAContainersMountShows) {
  write("/proc/self/cgroup", "4:memory:/docker/abc\n");
  write("/proc/self/mountinfo",
        "32 25 0:28 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
  const auto* limit = find(memory_limits(root_), "memory cgroup /");
  ASSERT_NE(limit, nullptr);
}

TEST_F(FakeRoot, MachineMemoryCounts) {
  EXPECT_TRUE(check_headroom(4000 * kMiB, "x", root_).ok());
  const Status status = check_headroom(4080 * kMiB, "x", root_);
  EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory);
  EXPECT_THAT(status.message(), HasSubstr("MemAvailable"));
}

TEST_F(FakeRoot, DamagedFilesLimitNothing) {
  write("/proc/self/cgroup", "nonsense\n4:memory\n:::\n0::relative\n");
  write("/proc/self/mountinfo", "a b c\n - cgroup\n1 2 3 / - cgroup2\n");
  write("/proc/meminfo", "MemAvailable\nMemTotal: x\n");
  EXPECT_TRUE(check_headroom(kMiB, "x", root_).ok());
}

TEST(Headroom, RefusesMoreThanTheAddressSpaceLimit) {
  EXPECT_EQ(in_child([] {
              limit_address_space(50 * kMiB);
              const auto segment = SharedSegment::create(60 * kMiB, "a bucket");
              return segment.status().code() == ErrorCode::kOutOfMemory &&
                     segment.status().message().find("RLIMIT_AS is ") != std::string::npos &&
                     SharedSegment::create(kMiB, "a bucket").ok();
            }),
            0);
}

TEST(Headroom, RefusesMoreThanTheFileSizeLimitWithoutASignal) {
  EXPECT_EQ(in_child([] {
              const rlimit limit = {kMiB, kMiB};
              ::setrlimit(RLIMIT_FSIZE, &limit);
              const auto segment = SharedSegment::create(2 * kMiB, "a bucket");
              return segment.status().code() == ErrorCode::kOutOfMemory &&
                     segment.status().message().find("RLIMIT_FSIZE") != std::string::npos &&
                     SharedSegment::create(kMiB, "a bucket").ok();
            }),
            0);
}

TEST(Headroom, TooManyOpenFilesIsAnErrorThatNamesTheLimit) {
  EXPECT_EQ(in_child([] {
              const rlimit limit = {8, 8};
              ::setrlimit(RLIMIT_NOFILE, &limit);
              while (::dup(0) >= 0) {
              }
              const auto segment = SharedSegment::create(4096, "a bucket");
              return segment.status().message().find("RLIMIT_NOFILE") != std::string::npos;
            }),
            0);
}

}  // namespace
}  // namespace collective_ops
