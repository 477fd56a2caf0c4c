#include "analysis/readers/ascend_communication.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "analysis/readers/json_scanner.h"

namespace collective_ops {
namespace {

// "hcom_allReduce__586_0_1@17522688603477080586" -> name and group; the group is empty where there is none.
std::pair<std::string_view, std::string_view> parted(std::string_view key) {
  const size_t at = key.rfind('@');
  if (at == std::string_view::npos) return {key, {}};
  return {key.substr(0, at), key.substr(at + 1)};
}

// "hcom_allReduce__586_0_1" -> "hcom_allReduce".
std::string_view kind_of(std::string_view operator_name) {
  return operator_name.substr(0, operator_name.find("__"));
}

// Runs `visit(step, point_to_point, key)` for each operator of a file; it must read the value.
template <typename Visit>
void for_each_operator(JsonScanner* scanner, const Visit& visit) {
  std::string_view step, part, key;
  if (!scanner->enter('{')) return;
  while (scanner->next_key(&step)) {
    if (!scanner->enter('{')) return;
    while (scanner->next_key(&part)) {
      if (part != "p2p" && part != "collective") {  // sums, which are made anew
        scanner->skip();
        continue;
      }
      if (!scanner->enter('{')) return;
      while (scanner->next_key(&key)) visit(step, part == "p2p", key);
    }
  }
}

void note_break(const JsonScanner& scanner, std::string_view file, RankProfile* profile) {
  if (scanner.good()) return;
  profile->notes.push_back(fmt::format("{}: {} at byte {}; what precedes is used", file,
                                       scanner.state() == JsonScanner::State::kEnded ? "cut off" : "broken",
                                       scanner.position()));
}

void read_times(JsonScanner* scanner, OperatorTimes* times) {
  std::string_view key;
  if (!scanner->enter('{')) return;
  while (scanner->next_key(&key)) {
    double ratio = 0;  // made anew from the times
    double* target = &ratio;
    if (key == "Start Timestamp(us)") target = &times->start_us;
    if (key == "Elapse Time(ms)") target = &times->elapse_ms;
    if (key == "Transit Time(ms)") target = &times->transit_ms;
    if (key == "Wait Time(ms)") target = &times->wait_ms;
    if (key == "Synchronization Time(ms)") target = &times->synchronization_ms;
    if (key == "Idle Time(ms)") target = &times->idle_ms;
    *target = scanner->number();
  }
}

void read_sizes(JsonScanner* scanner, std::vector<SizeClass>* sizes) {
  std::string_view key;
  if (!scanner->enter('{')) return;
  while (scanner->next_key(&key)) {
    SizeClass size;
    size.megabytes = double_of(key);
    if (!scanner->enter('[')) return;
    for (int i = 0; scanner->next_element(); ++i) {
      const double value = scanner->number();
      if (i == 0) size.count = value;
      if (i == 1) size.milliseconds = value;
    }
    sizes->push_back(size);
  }
}

void read_links(JsonScanner* scanner, RankProfile* profile, std::vector<LinkTraffic>* links) {
  std::string_view name, key;
  if (!scanner->enter('{')) return;
  while (scanner->next_key(&name)) {
    LinkTraffic traffic;
    traffic.link = profile->names.intern(name);
    if (!scanner->enter('{')) return;
    while (scanner->next_key(&key)) {
      if (key == "Transit Size(MB)") {
        traffic.megabytes = scanner->number();
      } else if (key == "Transit Time(ms)") {
        traffic.milliseconds = scanner->number();
      } else if (key == "Bandwidth(GB/s)") {
        traffic.gigabytes_per_second = scanner->number();
      } else if (key == "Large Packet Ratio") {
        traffic.large_packet_ratio = scanner->number();
      } else if (key == "Size Distribution" && scanner->peek() == '{') {
        read_sizes(scanner, &traffic.sizes);
      } else {
        scanner->skip();
      }
    }
    if (traffic.megabytes != 0 || traffic.milliseconds != 0 || !traffic.sizes.empty()) {
      links->push_back(std::move(traffic));
    }
  }
}

// Whole and fraction apart: microseconds since 1970 have more digits than a double's product keeps.
int64_t nanoseconds(double microseconds) {
  if (!(std::abs(microseconds) < 4.5e15)) return 0;  // a start and a length still add up
  const double whole = std::floor(microseconds);
  return static_cast<int64_t>(whole) * 1000 + std::llround((microseconds - whole) * 1000);
}

}  // namespace

void add_operator(CommunicationOperator op, RankProfile* profile) {
  ProfiledCall call;
  call.start_ns = nanoseconds(op.times.start_us);
  call.end_ns = call.start_ns + std::max<int64_t>(0, nanoseconds(op.times.elapse_ms * 1000));
  call.collective = profile->names.intern(kind_of(profile->names[op.name]));
  call.group = op.group;
  call.operator_name = op.name;
  call.point_to_point = op.point_to_point;
  double megabytes = 0;
  for (const LinkTraffic& link : op.links) {
    if (profile->names[link.link] != "SDMA") megabytes += link.megabytes;  // the sum of others
  }
  call.link_bytes = std::llround(std::clamp(megabytes, 0.0, 9e12) * 1e6);
  std::string_view step = profile->names[op.step];
  if (step.starts_with("step")) step.remove_prefix(4);
  for (size_t row = 0; row < profile->steps.size(); ++row) {
    if (profile->steps[row].step == step) call.step = static_cast<uint32_t>(row);
  }
  profile->calls.push_back(call);
  profile->operators.push_back(std::move(op));
}

void read_communication(std::string_view text, RankProfile* profile) {
  JsonScanner scanner(text);
  for_each_operator(&scanner, [&](std::string_view step, bool point_to_point, std::string_view key) {
    CommunicationOperator op;
    const auto [name, group] = parted(key);
    op.step = profile->names.intern(step);
    op.name = profile->names.intern(name);
    op.group = profile->names.intern(group);
    op.point_to_point = point_to_point;
    std::string_view part;
    if (!scanner.enter('{')) return;
    while (scanner.next_key(&part)) {
      if (part == "Communication Time Info" && scanner.peek() == '{') {
        read_times(&scanner, &op.times);
      } else if (part == "Communication Bandwidth Info" && scanner.peek() == '{') {
        read_links(&scanner, profile, &op.links);
      } else {
        scanner.skip();
      }
    }
    if (!scanner.good() || name == "Total Op Info") return;
    add_operator(std::move(op), profile);
  });
  note_break(scanner, "communication.json", profile);
  std::sort(profile->calls.begin(), profile->calls.end(),
            [](const ProfiledCall& a, const ProfiledCall& b) { return a.start_ns < b.start_ns; });
}

void read_communication_matrix(std::string_view text, RankProfile* profile) {
  JsonScanner scanner(text);
  NameTable& names = profile->names;
  for_each_operator(&scanner, [&](std::string_view step, bool point_to_point, std::string_view key) {
    const auto [name, group] = parted(key);
    std::string_view link, field, value;
    if (!scanner.enter('{')) return;
    while (scanner.next_key(&link)) {
      MatrixEntry entry;
      entry.step = names.intern(step);
      entry.name = names.intern(name);
      entry.group = names.intern(group);
      entry.point_to_point = point_to_point;
      entry.transport = entry.operator_name = names.intern("");
      const size_t dash = link.find('-');
      const auto source = integer_of(link.substr(0, dash));
      const auto destination = integer_of(dash == std::string_view::npos ? "" : link.substr(dash + 1));
      if (!scanner.enter('{')) return;
      while (scanner.next_key(&field)) {
        if (field == "Transport Type" && scanner.peek() == '"') {
          if (scanner.string(&value)) entry.transport = names.intern(value);
        } else if (field == "Op Name" && scanner.peek() == '"') {
          if (scanner.string(&value)) entry.operator_name = names.intern(value);
        } else if (field == "Transit Size(MB)") {
          entry.megabytes = scanner.number();
        } else if (field == "Transit Time(ms)") {
          entry.milliseconds = scanner.number();
        } else if (field == "Bandwidth(GB/s)") {
          entry.gigabytes_per_second = scanner.number();
        } else {
          scanner.skip();
        }
      }
      if (!scanner.good() || !source || !destination || *source < 0 || *destination < 0) continue;
      entry.source = static_cast<int>(*source);
      entry.destination = static_cast<int>(*destination);
      if (name != "Total Op Info") profile->matrix.push_back(entry);
    }
  });
  note_break(scanner, "communication_matrix.json", profile);
}

}  // namespace collective_ops
