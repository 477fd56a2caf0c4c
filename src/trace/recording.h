// Whether and where a rank's calls are recorded, and the switch for all communicators of this process.
//
//   record_calls({.directory = folder, .steps = true});  // from now on, those that join later included
//   ... calls ...
//   stop_recording_calls();
//
// A recording that COLLECTIVE_OPS_TRACE has begun goes on to the end, whatever the switch says. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include <collective_ops/status.h>

#include "trace/recorder.h"

namespace collective_ops {

struct RecordingOptions {
  std::filesystem::path directory;
  bool steps = false;  // the steps of each call's plan too
};

class Recording {
 public:
  // Of one communicator's rank. Where the process records already, so does this one from the start.
  static Result<std::shared_ptr<Recording>> create(RecorderIdentity identity);

  // Asked before each call: a load.
  bool on() const { return on_.load(std::memory_order_acquire); }
  bool steps() const { return steps_.load(std::memory_order_relaxed); }

  // The recorder, nullptr while it is off. `number` is another one for each recorder: groups name themselves
  // in each.
  struct Open {
    std::shared_ptr<Recorder> recorder;
    uint64_t number = 0;
  };
  Open open() const;
  const RecorderIdentity& identity() const { return identity_; }

  // To the end of the job, whose last rank then merges the files. Errors: as of Recorder::open.
  Status start_for_job(const std::filesystem::path& directory);
  // The rank leaves. Returns the folder whose files are to be merged, "" where nobody asked for that.
  std::filesystem::path end();

 private:
  friend Result<std::vector<std::filesystem::path>> record_calls(const RecordingOptions& options);
  friend void stop_recording_calls();

  explicit Recording(RecorderIdentity identity) : identity_(std::move(identity)) {}
  Status start(const RecordingOptions& options);
  void stop();
  Status open_in(const std::filesystem::path& directory);  // holding mutex_

  const RecorderIdentity identity_;
  std::atomic<bool> on_{false};
  std::atomic<bool> steps_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<Recorder> recorder_;
  uint64_t number_ = 0;
  bool for_job_ = false;
};

// Switches recording on in every communicator of this process; one that records already goes on into its own
// file. Returns the files. Errors: as of Recorder::open; then nothing new is recorded.
Result<std::vector<std::filesystem::path>> record_calls(const RecordingOptions& options);

// Calls that run end in the files of then. Without effect where nothing was switched on.
void stop_recording_calls();

// Who the communicators of this process are, recording or not.
std::vector<RecorderIdentity> recordable();

// The files that communicators of this process write now.
std::vector<std::filesystem::path> recorded_files();

}  // namespace collective_ops
