// Traces in Chrome's format: Kineto's (torch.profiler) of every generation and comm_trace.json. One pass,
// in windows; memory grows with the events that are kept and not with the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "trace/events.h"

namespace collective_ops {

struct TraceGroupMembers {
  std::string name;         // a counter, a hash, or the user's
  std::string description;  // "default_pg", "tp" ...
  std::vector<int> ranks;   // ascending
};

struct TraceHeader {
  std::optional<int> rank;
  int world_size = 0;  // 0: not said
  std::string host;
  std::string backend;
  std::vector<TraceGroupMembers> groups;
  std::map<int, std::string> host_of_rank;  // of a file that holds all ranks
  bool all_ranks = false;                   // comm_trace.json
  std::vector<int> missing_ranks;           // as comm_trace.json says itself
};

// What could not be used.
struct TraceDamage {
  uint64_t events = 0;     // broken events, skipped
  uint64_t durations = 0;  // negative, or longer than a week: left out of every sum
  std::string text;        // "" or what ended the file before its end
};

struct ChromeTrace {
  TraceHeader header;
  EventTable events;  // sorted by start
  TraceDamage damage;
  bool has_device = false;  // kernels or copies of a device; else a run on CPUs alone
  uint64_t bytes = 0;       // of text read, after inflating
  uint64_t seen = 0;        // events in the file, kept or not
};

struct RawEvent;

// Runs `take` on each event of the file, as it stands in the text. Fills header, damage and bytes of `trace`;
// returns the unit's zero, baseTimeNanoseconds. Errors as of read_chrome_trace.
Result<int64_t> for_each_event(const std::filesystem::path& path, ChromeTrace* trace,
                               const std::function<void(const RawEvent&)>& take);

// kSystem: the file cannot be read. kInvalidArgument: it is no such trace. Anything less is `damage`.
Result<ChromeTrace> read_chrome_trace(const std::filesystem::path& path);

}  // namespace collective_ops
