#include "trace/recorder.h"

#include <algorithm>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "support.h"

namespace collective_ops {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RecorderIdentity identity(int rank = 0, int world_size = 2) {
  return {.job_id = "digits",
          .rank = rank,
          .world_size = world_size,
          .run = 7,
          .algorithms = {"direct", "two_shot"}};
}

TEST(Recorder, WritesWhatItWasGiven) {
  TemporaryDirectory directory;
  const int64_t before = monotonic_ns();
  auto recorder = Recorder::open(directory.path(), identity(1, 3));
  ASSERT_TRUE(recorder.ok()) << recorder.status().message();
  CallRecord made = call(5, 100, 900);
  made.algorithm = 1;
  made.waited_ns = 60;
  made.moved_ns = 40;
  (*recorder)->record(made, std::vector{peer(0, 20, 8), peer(2, 40, 16, 4)});
  (*recorder)->record(call(6, 1000, 1001));
  EXPECT_EQ((*recorder)->recorded_calls(), 2U);
  const auto path = (*recorder)->path();
  EXPECT_EQ(path.filename(), trace_file_name("digits", 1));
  recorder = Status();

  const FileView file(path);
  const TraceFileHeader& header = file.header();
  EXPECT_EQ(header.magic, kTraceMagic);
  EXPECT_EQ(header.rank, 1);
  EXPECT_EQ(header.world_size, 3);
  EXPECT_EQ(header.run, 7U);
  EXPECT_EQ(header.pid, getpid());
  EXPECT_STREQ(header.job_id, "digits");
  EXPECT_STREQ(header.algorithms[1], "two_shot");
  EXPECT_EQ(header.closed.load(), 1U);
  EXPECT_GE(header.opened_monotonic_ns, before);
  EXPECT_LE(header.opened_monotonic_ns, monotonic_ns());
  EXPECT_EQ(file.text.size(), sizeof(TraceFileHeader) + 2 * sizeof(CallRecord) + 2 * sizeof(PeerRecord));

  const auto calls = file.calls();
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].sequence, 5U);
  EXPECT_EQ(calls[0].waited_ns, 60);
  EXPECT_EQ(calls[0].longest_peer, 2);
  EXPECT_EQ(calls[0].longest_wait_ns, 40);
  EXPECT_EQ(calls[1].longest_peer, kNoPeer);
  const auto peers = file.peers(sizeof(TraceFileHeader) + sizeof(CallRecord), 2);
  EXPECT_EQ(peers[1].peer, 2U);
  EXPECT_EQ(peers[1].read_bytes, 16U);
  EXPECT_EQ(peers[1].written_bytes, 4U);
}

TEST(Recorder, GrowsOverManyWindows) {
  TemporaryDirectory directory;
  auto recorder = Recorder::open(directory.path(), identity(), {.grow_bytes = 4096});
  ASSERT_TRUE(recorder.ok());
  std::vector<PeerRecord> peers;
  for (int i = 0; i < 300; ++i) peers.push_back(peer(i, 1, 2));  // one entry is larger than a step
  for (uint64_t i = 0; i < 200; ++i)
    (*recorder)->record(call(i, 1, 2), std::span(peers).first(i % 2 == 0 ? 300 : 3));
  const FileView file((*recorder)->path());
  const auto calls = file.calls();
  ASSERT_EQ(calls.size(), 200U);
  for (uint64_t i = 0; i < 200; ++i) EXPECT_EQ(calls[i].sequence, i);
}

TEST(Recorder, LeavesAnOlderFileToItsProcess) {
  TemporaryDirectory directory;
  auto older = Recorder::open(directory.path(), identity());
  (*older)->record(call(1, 1, 2));
  auto newer = Recorder::open(directory.path(), identity());
  ASSERT_TRUE(newer.ok());
  (*older)->record(call(2, 3, 4));  // would be SIGBUS, had the file been cut short
  (*newer)->record(call(3, 5, 6));
  EXPECT_EQ((*older)->recorded_calls(), 2U);
  EXPECT_EQ(FileView((*newer)->path()).calls().at(0).sequence, 3U);
  EXPECT_EQ(directory.names().size(), 1U);
}

TEST(Recorder, RefusesWhatCannotBe) {
  TemporaryDirectory directory;
  EXPECT_EQ(Recorder::open(directory.path(), identity(2, 2)).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Recorder::open(directory.path(), identity(-1, 2)).status().code(), ErrorCode::kInvalidArgument);
  auto crowded = identity();
  crowded.algorithms.assign(kMaxAlgorithmNames + 1, "ring");
  EXPECT_EQ(Recorder::open(directory.path(), crowded).status().code(), ErrorCode::kInvalidArgument);
  const Status missing = Recorder::open(directory.path() / "absent", identity()).status();
  EXPECT_EQ(missing.code(), ErrorCode::kSystem);
  EXPECT_THAT(missing.message(), HasSubstr("COLLECTIVE_OPS_TRACE_DIR"));
  EXPECT_THAT(directory.names(), ElementsAre());
}

TEST(Recorder, CutsLongTextsBetweenCharacters) {
  TemporaryDirectory directory;
  auto wordy = identity();
  wordy.algorithms = {std::string(30, 'a') + "\u00e9"};  // the last character would end in byte 32
  auto recorder = Recorder::open(directory.path(), wordy);
  ASSERT_TRUE(recorder.ok());
  EXPECT_EQ(FileView((*recorder)->path()).header().algorithms[0], std::string(30, 'a'));
}

TEST(Recorder, WritesFromManyThreads) {
  TemporaryDirectory directory;
  auto recorder = Recorder::open(directory.path(), identity(), {.grow_bytes = 4096});
  ASSERT_TRUE(recorder.ok());
  {
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < 500; ++i)
          (*recorder)->record(call(t * 500 + i, 1, 2), std::vector{peer(1, 3, 4)});
      });
    }
  }
  std::vector<uint64_t> seen;
  for (const auto& record : FileView((*recorder)->path()).calls()) seen.push_back(record.sequence);
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), 2000U);
  for (uint64_t i = 0; i < 2000; ++i) EXPECT_EQ(seen[i], i);
}

TEST(Recorder, StopsAtItsLimitAndCountsWhatIsLost) {
  TemporaryDirectory directory;
  auto recorder = Recorder::open(directory.path(), identity(), {.grow_bytes = 4096, .max_bytes = 3 * 4096});
  ASSERT_TRUE(recorder.ok());
  testing::internal::CaptureStderr();
  for (uint64_t i = 0; i < 100; ++i) (*recorder)->record(call(i, 1, 2));
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_EQ((*recorder)->recorded_calls(), 2 * 4096 / sizeof(CallRecord));
  EXPECT_FALSE((*recorder)->status().ok());
  EXPECT_THAT(warning, HasSubstr("limit of 12288 bytes"));
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1);
  const FileView file((*recorder)->path());
  EXPECT_EQ(file.header().lost_calls.load(), 100 - (*recorder)->recorded_calls());
}

// Runs `body` in a child, and returns how the child ended.
template <typename Body>
int child_status(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(Recorder, SurvivesKill) {
  TemporaryDirectory directory;
  const int status = child_status([&] {
    auto recorder = Recorder::open(directory.path(), identity());
    for (uint64_t i = 0; i < 1000; ++i) (*recorder)->record(call(i, 10, 20), std::vector{peer(1, 5, 16)});
    kill(getpid(), SIGKILL);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  const FileView file(directory.path() / trace_file_name("digits", 0));
  EXPECT_EQ(file.calls().size(), 1000U);
  EXPECT_EQ(file.header().closed.load(), 0U);
}

TEST(Recorder, KilledAnywhereLeavesWholeEntries) {
  TemporaryDirectory directory;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto recorder = Recorder::open(directory.path(), identity(), {.grow_bytes = 1 << 16});
    for (uint64_t i = 0;; ++i) {
      (*recorder)->record(call(i, 10, 20), std::vector{peer(1, 5, 16)});
      if (i == 5000 && write(ready[1], "x", 1) != 1) _exit(1);
    }
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  const auto calls = FileView(directory.path() / trace_file_name("digits", 0)).calls();
  ASSERT_GT(calls.size(), 5000U);
  for (uint64_t i = 0; i < calls.size(); ++i) ASSERT_EQ(calls[i].sequence, i);
}

TEST(Recorder, ObeysTheLimitOfFileSizes) {
  TemporaryDirectory directory;
  const int status = child_status([&] {
    const rlimit limit{16384, 16384};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto recorder = Recorder::open(directory.path(), identity(), {.grow_bytes = 4096});
    for (uint64_t i = 0; i < 1000; ++i) (*recorder)->record(call(i, 1, 2));
    _exit((*recorder)->status().ok() ? 1 : 0);
  });
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(FileView(directory.path() / trace_file_name("digits", 0)).calls().size(),
            3 * 4096 / sizeof(CallRecord));
}

TEST(Recorder, GoesOnWithAFullDisk) {
  TemporaryDirectory directory;
  if (mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "may not mount a small disk";
  const int status = child_status([&] {
    auto recorder = Recorder::open(directory.path(), identity(), {.grow_bytes = 4096});
    for (uint64_t i = 0; i < 10000; ++i) (*recorder)->record(call(i, 1, 2));
    const bool as_expected =
        recorder.ok() && !(*recorder)->status().ok() && (*recorder)->recorded_calls() > 300;
    _exit(as_expected ? 0 : 1);
  });
  const size_t calls = FileView(directory.path() / trace_file_name("digits", 0)).calls().size();
  umount(directory.path().c_str());
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_GT(calls, 300U);
}

TEST(Recorder, AForkedChildDoesNotCloseTheFile) {
  TemporaryDirectory directory;
  auto recorder = Recorder::open(directory.path(), identity());
  ASSERT_TRUE(recorder.ok());
  EXPECT_EQ(child_status([&] { recorder = Status(); }), 0);
  EXPECT_EQ(FileView((*recorder)->path()).header().closed.load(), 0U);
  (*recorder)->record(call(1, 1, 2));  // would be SIGBUS, had the child cut the file
  EXPECT_EQ((*recorder)->recorded_calls(), 1U);
}

TEST(TraceLayout, IsAsDocumented) {  // docs/formats.md
  EXPECT_EQ(offsetof(TraceFileHeader, rank), 24U);
  EXPECT_EQ(offsetof(TraceFileHeader, run), 40U);
  EXPECT_EQ(offsetof(TraceFileHeader, opened_real_ns), 56U);
  EXPECT_EQ(offsetof(TraceFileHeader, committed_bytes), 64U);
  EXPECT_EQ(offsetof(TraceFileHeader, closed), 88U);
  EXPECT_EQ(offsetof(TraceFileHeader, boot_id), 96U);
  EXPECT_EQ(offsetof(TraceFileHeader, job_id), 136U);
  EXPECT_EQ(offsetof(TraceFileHeader, host), 648U);
  EXPECT_EQ(offsetof(TraceFileHeader, algorithms), 904U);
  EXPECT_EQ(offsetof(CallRecord, sequence), 8U);
  EXPECT_EQ(offsetof(CallRecord, group), 16U);
  EXPECT_EQ(offsetof(CallRecord, collective), 24U);
  EXPECT_EQ(offsetof(CallRecord, path), 27U);
  EXPECT_EQ(offsetof(CallRecord, longest_peer), 30U);
  EXPECT_EQ(offsetof(CallRecord, bytes), 40U);
  EXPECT_EQ(offsetof(CallRecord, issued_ns), 48U);
  EXPECT_EQ(offsetof(CallRecord, waited_ns), 72U);
  EXPECT_EQ(offsetof(CallRecord, moved_ns), 88U);
  EXPECT_EQ(offsetof(PeerRecord, read_bytes), 8U);
  EXPECT_EQ(offsetof(PeerRecord, moved_ns), 24U);
  const PeerRecord record = peer(0x1234, 0x56789abcdef0, 0);
  uint64_t first;
  std::memcpy(&first, &record, sizeof(first));
  EXPECT_EQ(first, 0x56789abcdef01234U);
}

TEST(TraceNames, AreKnownByJobAndRank) {
  EXPECT_EQ(job_hash(""), "cbf29ce484222325");
  EXPECT_NE(job_hash("a"), job_hash("b"));
  EXPECT_EQ(trace_file_name("", 12), "comm_trace.cbf29ce484222325.rank12.bin");
  setenv("COLLECTIVE_OPS_TRACE_DIR", "/somewhere", 1);
  EXPECT_EQ(trace_directory(), "/somewhere");
  unsetenv("COLLECTIVE_OPS_TRACE_DIR");
  EXPECT_EQ(trace_directory(), std::filesystem::current_path() / "");
}

}  // namespace
}  // namespace collective_ops
