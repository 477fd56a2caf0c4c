// The events of comm_trace.json, one per line, in Chrome's trace format with Kineto's argument names.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <collective_ops/status.h>

#include "trace/merge.h"
#include "trace/reader.h"

namespace collective_ops {

// Text in quotes, valid JSON whatever the bytes are: control characters escaped, bytes that are not
// UTF-8 replaced by '?'.
std::string json_text(std::string_view text);

// Nanoseconds as microseconds with exactly three fraction digits: 5 -> 0.005, 1234567 -> 1234.567.
void append_microseconds(fmt::memory_buffer& out, int64_t nanoseconds);

// What all events of one rank share.
struct TimelineRank {
  const TraceFileInfo* info = nullptr;
  int64_t to_base_ns = 0;  // monotonic time of this host + to_base_ns = nanoseconds since the base
  std::map<uint32_t, TraceGroup> groups;
};

// Writes to a temporary file beside `path`; finish() gives it its name. Without finish() nothing stays.
class TimelineWriter {
 public:
  static Result<std::unique_ptr<TimelineWriter>> create(const std::filesystem::path& path);
  ~TimelineWriter();

  void begin(const MergeSummary& summary, const std::vector<TraceGroup>& groups, int64_t base_ns);
  void begin_rank(const TimelineRank& rank);  // events that name process and threads
  void call(const TimelineRank& rank, const CallRecord& call, std::span<const PeerRecord> peers);
  Status finish();

 private:
  TimelineWriter(std::filesystem::path path, std::string temporary, std::FILE* file);
  void open_event(std::string_view category, std::string_view name, int rank, uint32_t group, int64_t ts,
                  int64_t dur);
  void metadata(std::string_view name, int rank, std::string_view thread, std::string_view key,
                std::string_view value);
  void group_arguments(const TimelineRank& rank, const CallRecord& call);
  uint32_t track_of(const TimelineRank& rank, const CallRecord& call);
  void message_arguments(int rank, const CallRecord& call, std::span<const PeerRecord> peers);
  void peer_arguments(std::span<const PeerRecord> peers);
  void phases(const TimelineRank& rank, const CallRecord& call);
  void separator();
  void flush(size_t above);

  std::filesystem::path path_;
  std::string temporary_;
  std::FILE* file_;
  fmt::memory_buffer out_;
  bool first_event_ = true;
  std::set<std::pair<int, uint32_t>> named_tracks_;  // of messages, by rank
  int error_ = 0;                                    // errno of the first write that failed
};

}  // namespace collective_ops
