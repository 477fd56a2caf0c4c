#include "analysis/readers/chrome_events.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

namespace collective_ops {
namespace {

constexpr int64_t kLongestDuration = int64_t{7} * 24 * 3600 * 1'000'000'000;

struct CategoryRow {
  std::string_view category;
  EventKind kind;
};
// Categories that are kept; all others (python_function, flows' spans, overhead ...) are counted only.
// Names with capitals are those of before 2022.
constexpr std::array kCategories = {
    CategoryRow{"cpu_op", EventKind::kHostOperator},
    CategoryRow{"Operator", EventKind::kHostOperator},
    CategoryRow{"user_annotation", EventKind::kAnnotation},
    CategoryRow{"cuda_runtime", EventKind::kRuntime},
    CategoryRow{"cuda_driver", EventKind::kRuntime},
    CategoryRow{"Runtime", EventKind::kRuntime},
    CategoryRow{"mtia_runtime", EventKind::kRuntime},
    CategoryRow{"xpu_runtime", EventKind::kRuntime},
    CategoryRow{"xpu_driver", EventKind::kRuntime},
    CategoryRow{"privateuse1_runtime", EventKind::kRuntime},
    CategoryRow{"privateuse1_driver", EventKind::kRuntime},
    CategoryRow{"kernel", EventKind::kKernel},
    CategoryRow{"Kernel", EventKind::kKernel},
    CategoryRow{"mtia_ccp_events", EventKind::kKernel},
    CategoryRow{"hpu_op", EventKind::kKernel},
    CategoryRow{"gpu_memcpy", EventKind::kCopy},
    CategoryRow{"gpu_memset", EventKind::kCopy},
    CategoryRow{"Memcpy", EventKind::kCopy},
    CategoryRow{"Memset", EventKind::kCopy},
    CategoryRow{"collective", EventKind::kCommunication},
    CategoryRow{"collective_comm", EventKind::kCommunication},
};

// Parts of kernels' names, in small letters. Communication does not always say nccl.
constexpr std::array<std::string_view, 12> kCommunicationNames = {"nccl",
                                                                  "rccl",
                                                                  "hccl",
                                                                  "hcom_",
                                                                  "cross_device_reduce",
                                                                  "::ep::internode",
                                                                  "::ep::intranode",
                                                                  "deep_ep::",
                                                                  "nvshmem",
                                                                  "symm_mem",
                                                                  "multimem_all_reduce",
                                                                  "one_shot_all_reduce"};
// ROCm up to 7.1 calls its copies kernels.
constexpr std::array<std::string_view, 5> kCopyNames = {"memory_copy_", "__amd_rocclr_copybuffer",
                                                        "__amd_rocclr_fillbuffer", "memcpy", "memset"};

template <size_t kCount>
bool contains_any(const std::string& text, const std::array<std::string_view, kCount>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return text.find(part) != std::string::npos; });
}

// Elements of nested dimensions: [[2,3],[4]] -> 10. Lists of numbers multiply, lists of lists add up.
int64_t elements_of(JsonScanner* scanner, int depth) {
  if (scanner->peek() != '[') return scanner->integer();
  if (depth > 8) {
    scanner->skip();
    return 0;
  }
  int64_t product = 1, sum = 0;
  bool nested = false;
  scanner->enter('[');
  while (scanner->next_element()) {
    const bool list = scanner->peek() == '[';
    nested |= list;
    const int64_t part = elements_of(scanner, depth + 1);
    if (list) {
      sum += part;
    } else if (__builtin_mul_overflow(product, part, &product)) {
      product = -1;
    }
  }
  return nested ? sum : product;
}

template <typename Column>
void reorder(Column* column, const std::vector<uint32_t>& order) {
  Column sorted(column->size());
  for (size_t i = 0; i < order.size(); ++i) sorted[i] = (*column)[order[i]];
  *column = std::move(sorted);
}

void sort_by_start(EventTable* events) {
  std::vector<uint32_t> order(events->size());
  std::iota(order.begin(), order.end(), 0u);
  const auto& start = events->start_ns;
  if (std::is_sorted(start.begin(), start.end())) return;
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return start[a] < start[b]; });
  reorder(&events->start_ns, order);
  reorder(&events->duration_ns, order);
  reorder(&events->correlation, order);
  reorder(&events->name, order);
  reorder(&events->track, order);
  reorder(&events->arguments, order);
  reorder(&events->kind, order);
}

// As text.find(part), which looks at each quote in turn.
size_t position_of(std::string_view part, std::string_view text) {
  const void* const found = ::memmem(text.data(), text.size(), part.data(), part.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

// Where the value of a key goes; null for those that nobody asks for.
std::string_view* member_of(RawEvent* event, std::string_view key) {
  switch (key.size()) {
    case 2:
      if (key == "ph") return &event->phase;
      return key == "ts" ? &event->start : nullptr;
    case 3:
      if (key == "cat") return &event->category;
      if (key == "dur") return &event->duration;
      if (key == "pid") return &event->process;
      return key == "tid" ? &event->thread : nullptr;
    case 4:
      if (key == "name") return &event->name;
      return key == "args" ? &event->arguments : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace

bool is_backend_range(std::string_view name) {
  static constexpr std::array<std::string_view, 14> kCalls = {
      "all_",      "_all",   "allreduce", "allgather", "alltoall", "reduce", "_reduce",
      "broadcast", "gather", "scatter",   "barrier",   "send",     "recv",   "monitored_barrier"};
  const size_t colon = name.find(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  // Those that begin with nccl only issue what a device runs.
  if (name.starts_with("nccl") || name.find_first_of(" /.()<>") < colon) return false;
  const std::string_view call = name.substr(colon + 1);
  return std::any_of(kCalls.begin(), kCalls.end(),
                     [&](std::string_view begin) { return call.starts_with(begin); });
}

void scan_event(JsonScanner* scanner, RawEvent* event) {
  *event = {};
  if (!scanner->enter('{')) return;
  std::string_view key;
  while (scanner->next_key(&key)) {
    std::string_view* const target = member_of(event, key);
    const char value = scanner->peek();
    if (target == &event->arguments) {
      scanner->raw(target);
    } else if (target != nullptr && value != '{' && value != '[') {
      scanner->scalar(target);
    } else {
      scanner->skip();
    }
  }
}

void EventCollector::take(const RawEvent& event) {
  ++trace_.seen;
  if (event.phase != "X") return;
  if (event.category != category_) {
    category_ = event.category;
    category_kind_ = EventKind::kOther;
    for (const auto& row : kCategories) {
      if (row.category == event.category) category_kind_ = row.kind;
    }
  }
  if (category_kind_ == EventKind::kOther) return;
  const auto start = nanoseconds_of(event.start);
  const auto duration = event.duration.empty() ? std::optional<int64_t>(0) : nanoseconds_of(event.duration);
  if (!start) {
    ++trace_.damage.events;
    return;
  }
  if (!duration || *duration < 0 || *duration > kLongestDuration) {
    ++trace_.damage.durations;
    return;
  }
  const uint32_t name = intern(event.name);
  append(event, kind_of(name), name, *start, *duration);
}

uint32_t EventCollector::intern(std::string_view raw) {
  const bool plain = raw.find('\\') == std::string_view::npos;
  return plain ? trace_.events.names.intern(raw) : trace_.events.names.intern(unescaped(raw));
}

EventKind EventCollector::kind_of(uint32_t name) {
  if (category_kind_ == EventKind::kKernel) return kind_of_kernel(name);
  if (category_kind_ == EventKind::kAnnotation && is_backend_range(trace_.events.names[name])) {
    return EventKind::kCommunication;
  }
  return category_kind_;
}

EventKind EventCollector::kind_of_kernel(uint32_t name) {
  if (name >= kernel_kinds_.size()) kernel_kinds_.resize(name + 256, UINT8_MAX);
  if (kernel_kinds_[name] == UINT8_MAX) {
    std::string lower(trace_.events.names[name]);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    EventKind kind = EventKind::kKernel;
    if (contains_any(lower, kCommunicationNames)) kind = EventKind::kCommunication;
    if (std::any_of(kCopyNames.begin(), kCopyNames.end(),
                    [&](std::string_view part) { return lower.starts_with(part); })) {
      kind = EventKind::kCopy;
    }
    kernel_kinds_[name] = static_cast<uint8_t>(kind);
  }
  return static_cast<EventKind>(kernel_kinds_[name]);
}

uint32_t EventCollector::track_of(const RawEvent& event) {
  if (!has_track_ || event.process != process_ || event.thread != thread_) {
    process_ = event.process;
    thread_ = event.thread;
    track_text_ = process_ + "/" + thread_;
    track_ = intern(track_text_);
    has_track_ = true;
  }
  return track_;
}

void EventCollector::append(const RawEvent& event, EventKind kind, uint32_t name, int64_t start,
                            int64_t duration) {
  int64_t correlation = -1;
  int32_t call = -1;
  const bool device = category_kind_ == EventKind::kKernel || category_kind_ == EventKind::kCopy;
  if (device || kind == EventKind::kCommunication || kind == EventKind::kRuntime) {
    call = scan_arguments(event.arguments, &kind, &correlation);
  }
  trace_.has_device |= device;
  if (kind == EventKind::kHostOperator && event.name == "record_param_comms") {
    issues_.push_back({track_of(event), start, start + duration, scan_issue(event.arguments)});
  }
  EventTable& events = trace_.events;
  events.start_ns.push_back(start);
  events.duration_ns.push_back(duration);
  events.correlation.push_back(correlation);
  events.name.push_back(name);
  events.track.push_back(track_of(event));
  events.arguments.push_back(call);
  events.kind.push_back(kind);
}

// The correlation of a launch or a kernel that is no call, without a look at its other arguments: they are
// half of most traces. False where the arguments have to be read one by one.
bool EventCollector::quick_correlation(std::string_view text, EventKind kind, int64_t* correlation) const {
  if (kind == EventKind::kCommunication || text.size() < 2) return false;
  // In an object within the object the key would mean something else.
  if (text.find('{', 1) != std::string_view::npos) return false;
  if (kind == EventKind::kKernel && position_of("\"Collective name\"", text) != std::string_view::npos) {
    return false;
  }
  // A quote in front and behind that nothing escapes: inside of a text they cannot stand.
  static constexpr std::string_view kKey = "\"correlation\"";
  const size_t at = position_of(kKey, text);
  if (at == std::string_view::npos) return true;
  size_t from = text.find_first_not_of(" \t\r\n", at + kKey.size());
  if (from == std::string_view::npos || text[from] != ':') return false;
  from = text.find_first_not_of(" \t\r\n", from + 1);
  const size_t end = text.find_first_of(",} \t\r\n", from);
  if (end == std::string_view::npos) return false;
  const auto value = integer_of(text.substr(from, end - from));
  if (value) *correlation = *value;
  return value.has_value();
}

int32_t EventCollector::scan_arguments(std::string_view text, EventKind* kind, int64_t* correlation) {
  if (quick_correlation(text, *kind, correlation)) return -1;
  JsonScanner scanner(text);
  CallArguments call;
  if (text.empty() || !scanner.enter('{')) return -1;
  std::string_view key;
  while (scanner.next_key(&key)) {
    if (key == "correlation") {
      *correlation = scanner.integer();
    } else if (*kind == EventKind::kKernel || *kind == EventKind::kCommunication) {
      scan_call_argument(key, &scanner, &call);
    } else {
      scanner.skip();
    }
  }
  if (call.collective != CallArguments::kNoName && *kind == EventKind::kKernel) {
    *kind = EventKind::kCommunication;  // whatever the kernel is called
  }
  if (*kind != EventKind::kCommunication) return -1;
  trace_.events.calls.push_back(call);
  return static_cast<int32_t>(trace_.events.calls.size() - 1);
}

void EventCollector::scan_call_argument(std::string_view key, JsonScanner* scanner, CallArguments* call) {
  const auto name = [&](uint32_t* target) {
    std::string_view text;
    if (scanner->peek() == '{' || scanner->peek() == '[') {
      scanner->skip();
    } else if (scanner->scalar(&text)) {
      *target = intern(text);
    }
  };
  if (key == "Collective name") return name(&call->collective);
  if (key == "dtype") return name(&call->type);
  if (key == "Input type" && scanner->peek() == '[') {  // of Gloo's ranges: one name per tensor
    scanner->enter('[');
    for (bool first = true; scanner->next_element(); first = false) {
      uint32_t other = CallArguments::kNoName;
      name(first && call->type == CallArguments::kNoName ? &call->type : &other);
    }
    return;
  }
  if (key == "Process Group Name") return name(&call->group);
  if (key == "Input Dims") {
    call->elements = std::max(call->elements, elements_of(scanner, 0));
  } else if (key == "In msg nelems" || key == "Out msg nelems") {
    call->elements = std::max(call->elements, scanner->integer());
  } else if (key == "Seq") {
    call->sequence = scanner->integer();
  } else if (key == "Rank") {
    call->rank = static_cast<int32_t>(scanner->integer());
  } else if (key == "Src Rank") {
    call->source = static_cast<int32_t>(scanner->integer());
  } else if (key == "Dst Rank") {
    call->destination = static_cast<int32_t>(scanner->integer());
  } else if (key == "longest_wait_rank") {
    call->longest_wait_rank = static_cast<int32_t>(scanner->integer());
  } else if (key == "waited_us") {
    std::string_view text;
    if (scanner->scalar(&text)) call->waited_ns = nanoseconds_of(text).value_or(-1);
  } else {
    scanner->skip();
  }
}

// Its inputs are those of the record, not of the call.
int32_t EventCollector::scan_issue(std::string_view text) {
  JsonScanner scanner(text);
  CallArguments call;
  std::string_view key;
  if (!text.empty() && scanner.enter('{')) {
    while (scanner.next_key(&key)) {
      if (key == "Input Dims" || key == "Input type") {
        scanner.skip();
      } else {
        scan_call_argument(key, &scanner, &call);
      }
    }
  }
  trace_.events.calls.push_back(call);
  return static_cast<int32_t>(trace_.events.calls.size() - 1);
}

// A backend's range begins in the thread, and while, its call is issued: that tells group, sequence, size and
// type, of which the range itself has the inputs' size alone.
void EventCollector::attach_issues() {
  EventTable& events = trace_.events;
  const auto before = [](const Issue& a, const Issue& b) {
    return a.track != b.track ? a.track < b.track : a.start_ns < b.start_ns;
  };
  std::sort(issues_.begin(), issues_.end(), before);
  for (size_t i = 0; !issues_.empty() && i < events.size(); ++i) {
    if (events.kind[i] != EventKind::kCommunication || events.arguments[i] < 0) continue;
    if (!is_backend_range(events.names[events.name[i]])) continue;
    const int64_t start = events.start_ns[i];
    const auto after =
        std::upper_bound(issues_.begin(), issues_.end(), Issue{events.track[i], start, 0, 0}, before);
    if (after == issues_.begin()) continue;
    const Issue& issue = *(after - 1);
    if (issue.track != events.track[i] || issue.end_ns < start) continue;
    const CallArguments& said = events.calls[static_cast<size_t>(issue.call)];
    CallArguments& call = events.calls[static_cast<size_t>(events.arguments[i])];
    call.group = said.group;
    call.sequence = said.sequence;
    call.source = said.source;
    call.destination = said.destination;
    if (said.elements >= 0) call.elements = said.elements;
    if (said.type != CallArguments::kNoName) call.type = said.type;
  }
}

void EventCollector::finish(int64_t base_ns) {
  EventTable& events = trace_.events;
  if (!trace_.has_device) attach_issues();
  for (size_t i = 0; i < events.size(); ++i) {
    int64_t end = 0;  // has to exist, too
    if (__builtin_add_overflow(events.start_ns[i], base_ns, &events.start_ns[i]) ||
        __builtin_add_overflow(events.start_ns[i], events.duration_ns[i], &end)) {
      // One such moment would stretch every window over it.
      events.start_ns[i] = 0;
      events.kind[i] = EventKind::kOther;
      events.arguments[i] = -1;
      ++trace_.damage.events;
    }
    // With a device, the sums are about its streams; what a backend did beside them on the host is not.
    if (trace_.has_device && events.kind[i] == EventKind::kCommunication &&
        is_backend_range(events.names[events.name[i]])) {
      events.kind[i] = EventKind::kAnnotation;
    }
  }
  sort_by_start(&events);
}

}  // namespace collective_ops
