// One event of a Chrome trace: from its text to a row of the columns.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/readers/chrome_trace.h"
#include "analysis/readers/json_scanner.h"

namespace collective_ops {

// The event's members as they stand in the text; `args` unread.
struct RawEvent {
  std::string_view phase, name, category, start, duration, process, thread, arguments;
};

// Reads one event object; the scanner says where it is broken or cut off.
void scan_event(JsonScanner* scanner, RawEvent* event);

// A range that a backend of torch.distributed on CPUs names: "gloo:all_reduce", "collective_ops:broadcast".
bool is_backend_range(std::string_view name);

class EventCollector {
 public:
  explicit EventCollector(ChromeTrace* trace) : trace_(*trace) {}
  void take(const RawEvent& event);
  // Once the header is known: absolute times, in order of start; roles that need the whole file.
  void finish(int64_t base_ns);

 private:
  uint32_t intern(std::string_view raw);
  EventKind kind_of(uint32_t name);
  EventKind kind_of_kernel(uint32_t name);
  void append(const RawEvent& event, EventKind kind, uint32_t name, int64_t start, int64_t duration);
  uint32_t track_of(const RawEvent& event);
  bool quick_correlation(std::string_view text, EventKind kind, int64_t* correlation) const;
  int32_t scan_arguments(std::string_view text, EventKind* kind, int64_t* correlation);
  int32_t scan_issue(std::string_view text);
  void attach_issues();
  void scan_call_argument(std::string_view key, JsonScanner* scanner, CallArguments* call);

  // What the caller's thread says of a call while it issues it: record_param_comms.
  struct Issue {
    uint32_t track = 0;
    int64_t start_ns = 0, end_ns = 0;
    int32_t call = 0;  // row of EventTable::calls
  };

  ChromeTrace& trace_;
  std::vector<Issue> issues_;
  std::vector<uint8_t> kernel_kinds_;                     // by name, 255 where not yet known
  std::string category_, process_, thread_, track_text_;  // of the event before
  EventKind category_kind_ = EventKind::kOther;
  uint32_t track_ = 0;
  bool has_track_ = false;
};

}  // namespace collective_ops
