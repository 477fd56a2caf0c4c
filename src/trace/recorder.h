// Records the calls of one rank in a memory-mapped file. What was recorded survives kill -9.
//
//   auto recorder = Recorder::open(trace_directory(), {.job_id = job, .rank = 3, .world_size = 8});
//   (*recorder)->record(call, peers);
//
// A call costs some tens of nanoseconds: plain stores, and a system call once per few thousand calls,
// when the file grows. The disk is asked for room before it is touched, so a full disk is one warning
// on stderr and the end of recording, never a signal; the job goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <collective_ops/status.h>

#include "trace/record.h"

namespace collective_ops {

struct RecorderIdentity {
  std::string job_id;
  int rank = 0;
  int world_size = 1;
  uint64_t run = 0;  // any number that all ranks of this start share; tells old files of a job from new ones
  std::vector<std::string> algorithms;  // names of CallRecord::algorithm, at most kMaxAlgorithmNames
};

struct RecorderLimits {
  uint64_t grow_bytes = uint64_t{1} << 20;  // first step; later ones double the file, up to 32 MiB
  uint64_t max_bytes = uint64_t{4} << 30;   // of one rank's file; then recording stops with a warning
};

// Of a call's plan, at most kMaxSteps, and how many more it had.
struct RecordedSteps {
  std::span<const StepRecord> list;
  uint64_t left_out = 0;
};

class Recorder {
 public:
  // Creates comm_trace.<job hash>.rank<k>.bin in `directory`, in place of an older one of that name.
  // kInvalidArgument: rank or world_size cannot be; kSystem: no directory, no permission, disk full.
  static Result<std::unique_ptr<Recorder>> open(const std::filesystem::path& directory,
                                                const RecorderIdentity& identity,
                                                const RecorderLimits& limits = {});
  // Marks the file as complete and cuts it to its length. Does nothing in a forked child.
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Names a group (id > 0) before its first call. `ranks` are world ranks.
  void define_group(uint32_t group, std::string_view name, std::span<const int> ranks);

  // Writes one finished call. Peers with nothing to tell may be left out; at most 65535. Any thread.
  void record(const CallRecord& call, std::span<const PeerRecord> peers = {},
              const RecordedSteps& steps = {});

  const std::filesystem::path& path() const { return path_; }
  uint64_t recorded_calls() const;
  Status status() const;  // why recording stopped, or ok

 private:
  Recorder(std::filesystem::path path, int descriptor, const RecorderLimits& limits);
  Status start(const RecorderIdentity& identity);
  std::byte* reserve(uint64_t bytes);  // room for one entry, or null once recording has stopped
  bool grow(uint64_t bytes);
  bool populate(uint64_t bytes);
  void write_steps(const RecordedSteps& steps);  // holding the lock
  bool allocate(uint64_t end);                   // file length at least `end`, with its blocks
  void commit(uint64_t bytes);
  void stop(ErrorCode code, std::string reason);
  void unmap_window();

  std::filesystem::path path_;
  int descriptor_;
  RecorderLimits limits_;
  int64_t owner_pid_;
  mutable std::mutex mutex_;
  TraceFileHeader* header_ = nullptr;
  std::byte* window_ = nullptr;  // mapping of [window_begin_, window_end_) of the file
  uint64_t window_begin_ = 0;
  uint64_t window_end_ = 0;
  uint64_t ready_end_ = 0;  // pages up to here are there
  uint64_t position_ = 0;   // file offset of the next entry
  Status status_;
};

// COLLECTIVE_OPS_TRACE_DIR, or the working directory; absolute, so that a later chdir changes nothing.
std::filesystem::path trace_directory();

// 16 hex digits that stand for a job in file names.
std::string job_hash(std::string_view job_id);
std::string trace_file_name(std::string_view job_id, int rank);

}  // namespace collective_ops
