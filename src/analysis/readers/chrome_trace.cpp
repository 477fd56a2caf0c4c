#include "analysis/readers/chrome_trace.h"

#include <algorithm>
#include <functional>
#include <memory>

#include <fmt/format.h>

#include "analysis/readers/chrome_events.h"
#include "analysis/readers/json_scanner.h"
#include "analysis/readers/text_source.h"

namespace collective_ops {
namespace {

constexpr size_t kWindow = size_t{1} << 18;  // stays in the cache between being read and being scanned
// A value longer than this is taken for damage (a quote that is missing): real events have some KB.
constexpr size_t kLongestValue = size_t{64} << 20;

class Reader {
 public:
  Reader(TextSource* source, ChromeTrace* trace, const std::function<void(const RawEvent&)>& take)
      : source_(*source), trace_(*trace), take_(take) {}
  Status run();
  int64_t base_ns() const { return base_ns_; }

 private:
  template <typename Step>
  bool attempt(const Step& step);
  bool refill(size_t from);
  bool member();
  void top_value(std::string_view key, std::string_view value);
  void events();
  bool resynchronise(size_t from);
  void distributed_info(JsonScanner* scanner);
  void group_list(JsonScanner* scanner);
  void own_information(JsonScanner* scanner);
  void ended();

  TextSource& source_;
  ChromeTrace& trace_;
  const std::function<void(const RawEvent&)>& take_;
  std::string window_;
  JsonScanner scanner_{std::string_view()};
  uint64_t before_ = 0;  // bytes that have left the window
  int64_t base_ns_ = 0;
  bool complete_ = true;
  bool saw_events_ = false;
};

// Drops what lies before `from` and reads on; false at the end of the file.
bool Reader::refill(size_t from) {
  window_.erase(0, from);
  before_ += from;
  const bool more =
      window_.size() < kLongestValue && source_.read(std::max(kWindow, window_.size()), &window_);
  scanner_ = JsonScanner(window_);
  return more;
}

// Runs `step`, again with more text where that ended in the middle. False: the file ended, or is broken.
// `step` must not mind being repeated.
template <typename Step>
bool Reader::attempt(const Step& step) {
  while (true) {
    const size_t from = scanner_.position();
    step(&scanner_);
    if (scanner_.good()) return true;
    if (scanner_.state() == JsonScanner::State::kBroken) {
      scanner_.seek(from);
      return false;
    }
    if (!refill(from)) return false;
  }
}

Status Reader::run() {
  char first = 0;
  attempt([&](JsonScanner* scanner) {
    if (scanner->position() == 0 && window_.starts_with("\xEF\xBB\xBF")) scanner->seek(3);
    first = scanner->peek();
  });
  if (first != '[' && first != '{') {
    return {ErrorCode::kInvalidArgument, first == 0 ? "the file is empty" : "it is not JSON"};
  }
  if (first == '[') {
    events();
  } else {
    scanner_.enter('{');
    while (member()) {
    }
  }
  trace_.bytes = before_ + window_.size();
  if (!complete_) ended();
  if (!saw_events_) return {ErrorCode::kInvalidArgument, "it has no traceEvents"};
  return {};
}

// One key of the file's object and its value; false after the last.
bool Reader::member() {
  bool more = false, in_events = false;
  const bool whole = attempt([&](JsonScanner* scanner) {
    std::string_view key, value;
    more = scanner->next_key(&key);
    in_events = more && key == "traceEvents";
    if (more && !in_events && scanner->raw(&value)) top_value(key, value);
  });
  if (!whole) {
    complete_ = false;
    return false;
  }
  if (in_events) events();
  return more && complete_;
}

void Reader::top_value(std::string_view key, std::string_view value) {
  JsonScanner scanner(value);
  std::string_view text;
  TraceHeader& header = trace_.header;
  if (key == "distributedInfo") distributed_info(&scanner);
  if (key == "collective_ops") own_information(&scanner);
  if (key == "host_name" && scanner.string(&text)) header.host = unescaped(text);
  // Numbers end at the next character, which a value alone does not have.
  if (key == "baseTimeNanoseconds") base_ns_ = integer_of(value).value_or(0);
}

void Reader::events() {
  saw_events_ = true;
  bool whole = attempt([](JsonScanner* scanner) { scanner->enter('['); });
  RawEvent event;
  while (whole) {
    bool more = false;
    const size_t from = scanner_.position();
    const uint64_t dropped = before_;
    whole = attempt([&](JsonScanner* scanner) {
      more = scanner->next_element();
      if (more) scan_event(scanner, &event);
    });
    if (whole && !more) return;
    if (whole) {
      take_(event);
    } else {
      whole = resynchronise(before_ == dropped ? from + 1 : 1);
      if (whole) ++trace_.damage.events;
    }
  }
  complete_ = false;
}

// Behind a broken event: the next `}` that a comma and another event, or the end of the list, follow.
bool Reader::resynchronise(size_t from) {
  while (true) {
    size_t brace = window_.find('}', from);
    for (; brace != std::string::npos; brace = window_.find('}', brace + 1)) {
      const size_t comma = window_.find_first_not_of(" \t\r\n", brace + 1);
      if (comma == std::string::npos) break;
      if (window_[comma] != ',' && window_[comma] != ']') continue;
      const size_t next = window_.find_first_not_of(" \t\r\n", comma + 1);
      if (next == std::string::npos && window_[comma] == ',') break;
      const char follows = next == std::string::npos ? '}' : window_[next];
      const bool sound = window_[comma] == ',' ? follows == '{' : follows == ',' || follows == '}';
      if (!sound) continue;
      scanner_.seek(brace + 1);
      return true;
    }
    if (!refill(brace == std::string::npos ? window_.size() : brace)) return false;
    from = 0;
  }
}

void Reader::distributed_info(JsonScanner* scanner) {
  TraceHeader& header = trace_.header;
  std::string_view key, text;
  if (!scanner->enter('{')) return;
  while (scanner->next_key(&key)) {
    if (key == "rank") {
      const int64_t rank = scanner->integer();
      if (rank >= 0 && rank <= INT32_MAX) header.rank = static_cast<int>(rank);
    } else if (key == "world_size") {
      header.world_size = static_cast<int>(std::clamp<int64_t>(scanner->integer(), 0, INT32_MAX));
    } else if (key == "backend" && scanner->peek() == '"') {
      if (scanner->string(&text)) header.backend = unescaped(text);
    } else if (key == "pg_config" && scanner->peek() == '[') {
      group_list(scanner);
    } else {
      scanner->skip();
    }
  }
}

void Reader::group_list(JsonScanner* scanner) {
  std::string_view key, text;
  scanner->enter('[');
  while (scanner->next_element()) {
    TraceGroupMembers group;
    if (!scanner->enter('{')) return;
    while (scanner->next_key(&key)) {
      if (key == "pg_name" && scanner->scalar(&text)) {
        group.name = unescaped(text);
      } else if ((key == "pg_desc" || key == "uid") && scanner->scalar(&text)) {
        group.description = unescaped(text);
      } else if (key == "ranks") {
        group.ranks = rank_list(scanner);
      } else {
        scanner->skip();
      }
    }
    if (!group.ranks.empty()) trace_.header.groups.push_back(std::move(group));
  }
}

// comm_trace.json: all ranks in one file.
void Reader::own_information(JsonScanner* scanner) {
  TraceHeader& header = trace_.header;
  header.all_ranks = true;
  std::string_view key, text;
  if (!scanner->enter('{')) return;
  while (scanner->next_key(&key)) {
    if (key == "missing_ranks") {
      header.missing_ranks = rank_list(scanner);
    } else if (key == "ranks" && scanner->peek() == '[') {
      scanner->enter('[');
      while (scanner->next_element()) {
        int rank = -1;
        std::string host;
        if (!scanner->enter('{')) return;
        while (scanner->next_key(&key)) {
          if (key == "rank") {
            rank = static_cast<int>(scanner->integer());
          } else if (key == "host" && scanner->string(&text)) {
            host = unescaped(text);
          } else {
            scanner->skip();
          }
        }
        if (rank >= 0) header.host_of_rank[rank] = host;
      }
    } else {
      scanner->skip();
    }
  }
}

void Reader::ended() {
  std::string& text = trace_.damage.text;
  text = fmt::format("broken or cut off at byte {} of its text; what precedes is used",
                     before_ + scanner_.position());
  if (!source_.problem().empty()) text += "; " + source_.problem();
}

}  // namespace

Result<int64_t> for_each_event(const std::filesystem::path& path, ChromeTrace* trace,
                               const std::function<void(const RawEvent&)>& take) {
  auto source = TextSource::open(path);
  if (!source.ok()) return source.status();
  Reader reader(source->get(), trace, take);
  Status status = reader.run();
  if (!status.ok()) return Status(status.code(), fmt::format("{}: {}", path.string(), status.message()));
  return reader.base_ns();
}

Result<ChromeTrace> read_chrome_trace(const std::filesystem::path& path) {
  ChromeTrace trace;
  EventCollector collector(&trace);
  auto base = for_each_event(path, &trace, [&](const RawEvent& event) { collector.take(event); });
  if (!base.ok()) return base.status();
  collector.finish(*base);
  return trace;
}

}  // namespace collective_ops
