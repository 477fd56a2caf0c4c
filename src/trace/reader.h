// Reads one rank's trace file, as far as it can be read: what is damaged is named, never followed.
// Memory is bounded by the largest entry. Start at `Recorder` for the other direction.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "trace/record.h"

namespace collective_ops {

// The header of a file, checked.
struct TraceFileInfo {
  std::filesystem::path path;
  int rank = 0;
  int world_size = 1;
  int64_t pid = 0;
  uint64_t run = 0;
  int64_t opened_monotonic_ns = 0;
  int64_t opened_real_ns = 0;
  uint64_t committed_bytes = 0;
  uint64_t committed_calls = 0;
  uint64_t lost_calls = 0;
  bool closed = false;
  int64_t recording_pid = 0;  // a live process that still writes the file, or 0
  std::string boot_id;
  std::string job_id;
  std::string host;
  std::vector<std::string> algorithms;
};

struct TraceGroup {
  uint32_t id = 0;
  std::string name;
  std::vector<int> ranks;
  bool operator==(const TraceGroup&) const = default;
};

class TraceFileReader {
 public:
  enum class Entry { kCall, kGroup, kEnd };

  // kSystem: cannot be opened; kInvalidArgument: no trace file, damaged header, another version.
  static Result<TraceFileReader> open(const std::filesystem::path& path);

  const TraceFileInfo& info() const { return info_; }

  // The next entry that can be. kEnd: after the last, or where the file cannot be followed further.
  Entry next();
  const CallRecord& call() const { return call_; }              // of the last kCall
  std::span<const PeerRecord> peers() const { return peers_; }  // of the last kCall
  const TraceGroup& group() const { return group_; }            // of the last kGroup

  // Once kEnd was returned: why entries are missing, "" where none are.
  std::string problem() const;

 private:
  struct FileCloser {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  TraceFileReader(std::unique_ptr<std::FILE, FileCloser> file, TraceFileInfo info);
  bool read(void* target, size_t bytes);
  bool skip(size_t bytes);
  bool read_call(const EntryHeader& header);
  bool read_group(const EntryHeader& header);
  bool plausible() const;
  Entry stop(std::string why);

  std::unique_ptr<std::FILE, FileCloser> file_;
  TraceFileInfo info_;
  uint64_t position_ = 0;  // behind the header
  uint64_t calls_ = 0;
  uint64_t skipped_ = 0;  // calls whose values cannot be
  std::string stopped_;
  CallRecord call_;
  std::vector<PeerRecord> peers_;
  TraceGroup group_;
};

}  // namespace collective_ops
