// The switch of a process: recordings of its communicators begin and end with it, but for those of a job.
#include "trace/recording.h"

#include <gtest/gtest.h>

#include "support.h"
#include "trace/reader.h"

namespace collective_ops {
namespace {

RecorderIdentity identity(const std::string& job) { return {.job_id = job, .rank = 1, .world_size = 2}; }

uint64_t calls_in(const std::filesystem::path& path) {
  auto file = TraceFileReader::open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  uint64_t calls = 0;
  for (auto entry = file->next(); entry != TraceFileReader::Entry::kEnd; entry = file->next())
    calls += entry == TraceFileReader::Entry::kCall;
  EXPECT_EQ(file->problem(), "");
  return calls;
}

TEST(Recording, SwitchesAllOfTheProcessOnAndOff) {
  const TemporaryDirectory folder;
  auto early = Recording::create(identity("early"));
  ASSERT_TRUE(early.ok());
  EXPECT_FALSE((*early)->on());
  EXPECT_EQ((*early)->open().recorder, nullptr);

  auto files = record_calls({.directory = folder.path(), .steps = true});
  ASSERT_TRUE(files.ok()) << files.status().message();
  ASSERT_EQ(files->size(), 1u);
  EXPECT_TRUE((*early)->on() && (*early)->steps());
  auto late = Recording::create(identity("late"));
  ASSERT_TRUE(late.ok());
  EXPECT_TRUE((*late)->on());
  EXPECT_EQ(recorded_files().size(), 2u);
  const auto held = (*early)->open().recorder;  // by a call that runs on

  stop_recording_calls();
  EXPECT_FALSE((*early)->on() || (*late)->on() || (*early)->steps());
  EXPECT_TRUE(recorded_files().empty());
  held->record({});
  EXPECT_EQ(calls_in(files->front()), 1u);
  EXPECT_EQ((*early)->end(), "");
}

TEST(Recording, EachRecorderHasANumberOfItsOwn) {
  const TemporaryDirectory folder;
  auto recording = Recording::create(identity("again"));
  ASSERT_TRUE(recording.ok());
  ASSERT_TRUE(record_calls({.directory = folder.path()}).ok());
  const uint64_t first = (*recording)->open().number;
  stop_recording_calls();
  ASSERT_TRUE(record_calls({.directory = folder.path()}).ok());
  EXPECT_NE((*recording)->open().number, first);
  stop_recording_calls();
}

TEST(Recording, OneOfTheJobGoesOn) {
  const TemporaryDirectory folder, other;
  auto recording = Recording::create(identity("job"));
  ASSERT_TRUE(recording.ok());
  ASSERT_TRUE((*recording)->start_for_job(folder.path()).ok());
  auto files = record_calls({.directory = other.path(), .steps = true});
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(files->front().parent_path(), folder.path());
  stop_recording_calls();
  EXPECT_TRUE((*recording)->on() && !(*recording)->steps());
  EXPECT_EQ((*recording)->end(), folder.path());
  EXPECT_FALSE((*recording)->on());
}

TEST(Recording, AFolderThatIsNotThereSwitchesNothingOn) {
  auto recording = Recording::create(identity("nowhere"));
  ASSERT_TRUE(recording.ok());
  const auto files = record_calls({.directory = "/nonexistent/folder"});
  EXPECT_EQ(files.status().code(), ErrorCode::kSystem);
  EXPECT_FALSE((*recording)->on());
  auto next = Recording::create(identity("next"));
  EXPECT_TRUE(next.ok() && !(*next)->on());
}

TEST(Recording, StepsStandBeforeTheirCallAndReadersPassOverThem) {
  const TemporaryDirectory folder;
  auto recorder = Recorder::open(folder.path(), identity("steps"));
  ASSERT_TRUE(recorder.ok());
  const std::vector<StepRecord> steps(
      300, StepRecord{.begun_ns = 1, .kind = 2, .peer = 0, .length_ns = 5, .bytes = 7});
  (*recorder)->record({}, {}, {steps, 4});
  (*recorder)->record({});
  const auto path = (*recorder)->path();
  recorder->reset();
  EXPECT_EQ(calls_in(path), 2u);
}

}  // namespace
}  // namespace collective_ops
