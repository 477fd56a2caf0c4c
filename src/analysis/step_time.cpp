#include "analysis/step_time.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "analysis/intervals.h"
#include "analysis/readers/chrome_events.h"

namespace collective_ops {
namespace {

constexpr std::string_view kStepMark = "ProfilerStep#";
constexpr uint32_t kNone = CallArguments::kNoName;

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000.0; }

bool is_message(std::string_view name) {
  for (const std::string_view part : {"send", "recv", "receive", "coalesced_p2p"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

bool is_send(std::string_view name) { return name.find("send") != std::string_view::npos; }

struct StepWindow {
  std::string step;
  int64_t begin = 0, end = 0;  // on the host
};

std::vector<StepWindow> steps_of(const EventTable& events) {
  std::vector<StepWindow> steps;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events.kind[i] != EventKind::kAnnotation && events.kind[i] != EventKind::kHostOperator) continue;
    const std::string_view name = events.names[events.name[i]];
    if (!name.starts_with(kStepMark)) continue;
    const std::string step(name.substr(kStepMark.size()));
    // A mark that several threads repeat is one step.
    const bool known =
        std::any_of(steps.begin(), steps.end(), [&](const StepWindow& other) { return other.step == step; });
    if (!known) steps.push_back({step, events.start_ns[i], events.end_ns(i)});
  }
  return steps;
}

bool is_receive(std::string_view name) {
  if (is_backend_range(name)) name.remove_prefix(name.find(':') + 1);
  return name.starts_with("hcom_receive") || name == "recv" || name == "irecv";
}

// The intervals of one step, by role.
struct Roles {
  std::vector<Interval> compute, communication, copies, issue;
  int64_t bubble = 0;
  int64_t first = INT64_MAX, last = INT64_MIN;  // work on the device
};

class Summary {
 public:
  Summary(const ChromeTrace& trace, RankProfile* profile) : trace_(trace), profile_(*profile) {}
  void run();

 private:
  void assign_steps();
  uint32_t step_at(int64_t time) const;
  int64_t issued_at(size_t row);
  void collect();
  void add_call(size_t row, uint32_t step);
  void add_operator_time(size_t row);
  void add_timeline();
  StepTime breakdown(Roles roles, std::string_view name, int64_t begin, int64_t end) const;
  void find_activities();
  uint32_t activity_in(Interval gap) const;

  const ChromeTrace& trace_;
  RankProfile& profile_;
  std::vector<StepWindow> windows_;
  std::vector<std::pair<int64_t, int64_t>>
      launches_;                      // correlation, start; by correlation, the first of each
  std::vector<Roles> roles_;          // by step, and last of the whole file
  std::vector<uint32_t> statistics_;  // row of operator_times by name, for each kind
  std::vector<size_t> activities_;    // rows that may explain a delay, by start
  int64_t longest_activity_ = 0;
  uint64_t outside_ = 0;
  size_t next_launch_ = 0;  // where the search for the last one ended
};

// Steps do not overlap: the last that began holds the time, if it has not ended.
uint32_t Summary::step_at(int64_t time) const {
  auto after = std::upper_bound(windows_.begin(), windows_.end(), time,
                                [](int64_t t, const StepWindow& window) { return t < window.begin; });
  if (after == windows_.begin()) return kNone;
  --after;
  return time < after->end ? static_cast<uint32_t>(after - windows_.begin()) : kNone;
}

void Summary::assign_steps() {
  const EventTable& events = trace_.events;
  windows_ = steps_of(events);
  for (size_t i = 0; i < events.size(); ++i) {
    if (events.kind[i] == EventKind::kRuntime && events.correlation[i] >= 0) {
      launches_.emplace_back(events.correlation[i], events.start_ns[i]);
    }
  }
  // Most of them are in order already: the host numbers launches as it makes them.
  const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
  if (!std::is_sorted(launches_.begin(), launches_.end(), before)) {
    std::stable_sort(launches_.begin(), launches_.end(), before);
  }
}

// The start of what launched an event; its own where nothing is known of that.
int64_t Summary::issued_at(size_t row) {
  const EventTable& events = trace_.events;
  const int64_t correlation = events.correlation[row];
  const auto is_launch = [&](size_t i) {
    return i < launches_.size() && launches_[i].first == correlation &&
           (i == 0 || launches_[i - 1].first < correlation);
  };
  // Devices run them mostly in the order of their launches.
  if (!is_launch(++next_launch_)) {
    const auto at = std::lower_bound(launches_.begin(), launches_.end(), correlation,
                                     [](const auto& launch, int64_t id) { return launch.first < id; });
    next_launch_ = static_cast<size_t>(at - launches_.begin());
    if (!is_launch(next_launch_)) return events.start_ns[row];
  }
  return launches_[next_launch_].second;
}

void Summary::collect() {
  const EventTable& events = trace_.events;
  const size_t whole = windows_.size();
  roles_.resize(whole + 1);
  for (size_t i = 0; i < events.size(); ++i) {
    const EventKind kind = events.kind[i];
    const bool on_device = kind == EventKind::kKernel || kind == EventKind::kCopy ||
                           (kind == EventKind::kCommunication && trace_.has_device);
    const bool on_host =
        !trace_.has_device && (kind == EventKind::kHostOperator || kind == EventKind::kCommunication);
    if (on_device || on_host || kind == EventKind::kHostOperator) add_operator_time(i);
    if (!on_device && !on_host) continue;
    const uint32_t step = step_at(on_device ? issued_at(i) : events.start_ns[i]);
    outside_ += step == kNone && !windows_.empty() && on_device ? 1 : 0;
    const std::string_view name = events.names[events.name[i]];
    const Interval interval{events.start_ns[i], events.end_ns(i)};
    for (const size_t target : {static_cast<size_t>(step), whole}) {
      if (target > whole) continue;
      Roles& roles = roles_[target];
      roles.first = std::min(roles.first, interval.begin);
      roles.last = std::max(roles.last, interval.end);
      if (kind == EventKind::kCopy) roles.copies.push_back(interval);
      if (kind == EventKind::kCommunication) roles.communication.push_back(interval);
      if (kind == EventKind::kKernel) roles.compute.push_back(interval);
      if (kind == EventKind::kHostOperator) {
        // The operator that issues a collective does no computation, nor does one that waits for it.
        (name.starts_with("c10d::") ? roles.issue : roles.compute).push_back(interval);
      }
      if (kind == EventKind::kCommunication && is_receive(name)) {
        roles.bubble += interval.end - interval.begin;
      }
    }
    if (kind == EventKind::kCommunication) add_call(i, step);
  }
}

void Summary::add_call(size_t row, uint32_t step) {
  const EventTable& events = trace_.events;
  ProfiledCall call;
  call.start_ns = events.start_ns[row];
  call.end_ns = events.end_ns(row);
  call.collective = events.name[row];
  call.step = step;
  if (events.arguments[row] >= 0) {
    const CallArguments& arguments = events.calls[static_cast<size_t>(events.arguments[row])];
    call.elements = arguments.elements;
    call.sequence = arguments.sequence;
    call.waited_ns = arguments.waited_ns;
    call.longest_wait_rank = arguments.longest_wait_rank;
    call.group = arguments.group;
    call.type = arguments.type;
    if (arguments.collective != kNone) call.collective = arguments.collective;
    call.sends = is_send(events.names[call.collective]);
    call.peer = call.sends ? arguments.destination : arguments.source;  // of the job, in any group
    if (call.peer == profile_.rank) call.peer = -1;  // a backend that writes the caller there tells nothing
  }
  call.point_to_point = is_message(events.names[call.collective]);
  const int64_t before = profile_.calls.empty() ? INT64_MIN : profile_.calls.back().end_ns;
  if (before != INT64_MIN && before < call.start_ns) call.busy_with = activity_in({before, call.start_ns});
  if (before == INT64_MIN && step != kNone) {
    call.busy_with = activity_in({windows_[step].begin, call.start_ns});
  }
  profile_.calls.push_back(call);
}

void Summary::add_operator_time(size_t row) {
  const EventTable& events = trace_.events;
  OperatorKind kind = OperatorKind::kHost;
  if (events.kind[row] == EventKind::kKernel) kind = OperatorKind::kCompute;
  if (events.kind[row] == EventKind::kCommunication) kind = OperatorKind::kCommunication;
  if (events.kind[row] == EventKind::kCopy) kind = OperatorKind::kCopy;
  const size_t index = size_t{events.name[row]} * 4 + static_cast<size_t>(kind);
  if (index >= statistics_.size()) statistics_.resize(events.names.size() * 4, kNone);
  uint32_t& place = statistics_[index];
  const int64_t duration = events.duration_ns[row];
  if (place == kNone) {
    place = static_cast<uint32_t>(profile_.operator_times.size());
    profile_.operator_times.push_back({events.name[row], kNone, kind, 0, 0, duration, duration, 0});
  }
  OperatorStatistics& statistics = profile_.operator_times[place];
  ++statistics.count;
  statistics.total_ns += duration;
  statistics.min_ns = std::min(statistics.min_ns, duration);
  statistics.max_ns = std::max(statistics.max_ns, duration);
  statistics.squares += static_cast<double>(duration) * static_cast<double>(duration);
}

// The calls of collectives and the steps stand in the timeline anyway; launches never do.
void Summary::add_timeline() {
  const EventTable& events = trace_.events;
  TimelineCollector timeline(timeline_share(profile_.world_size), &profile_.timeline);
  for (size_t i = 0; i < events.size(); ++i) {
    SliceKind kind = SliceKind::kHost;
    if (events.kind[i] == EventKind::kAnnotation) kind = SliceKind::kRange;
    if (events.kind[i] == EventKind::kKernel) kind = SliceKind::kCompute;
    if (events.kind[i] == EventKind::kCopy) kind = SliceKind::kCopy;
    const bool other = kind == SliceKind::kHost && events.kind[i] != EventKind::kHostOperator;
    if (other || (kind != SliceKind::kCompute && events.names[events.name[i]].starts_with(kStepMark)))
      continue;
    timeline.add({events.start_ns[i], events.duration_ns[i], events.name[i], events.track[i], kind});
  }
}

// What a rank does between two calls: the ranges that the program named, else kernels or operators.
void Summary::find_activities() {
  const EventTable& events = trace_.events;
  for (const EventKind kind : {EventKind::kAnnotation, EventKind::kKernel, EventKind::kHostOperator}) {
    for (size_t i = 0; i < events.size(); ++i) {
      if (events.kind[i] != kind) continue;
      const std::string_view name = events.names[events.name[i]];
      if (name.starts_with(kStepMark) || name.starts_with("c10d::") || name.starts_with("nccl:") ||
          is_backend_range(name)) {
        continue;
      }
      activities_.push_back(i);
      longest_activity_ = std::max(longest_activity_, events.duration_ns[i]);
    }
    if (!activities_.empty()) return;
  }
}

uint32_t Summary::activity_in(Interval gap) const {
  const EventTable& events = trace_.events;
  auto at = std::lower_bound(activities_.begin(), activities_.end(), gap.end,
                             [&](size_t row, int64_t time) { return events.start_ns[row] < time; });
  std::unordered_map<uint32_t, int64_t> time_of;
  std::pair<int64_t, uint32_t> best{0, kNone};
  // Bounded: a gap with more than this many ranges is explained by its last ones.
  for (int looked = 0; at != activities_.begin() && looked < 4096; ++looked) {
    const size_t row = *--at;
    if (events.start_ns[row] + longest_activity_ < gap.begin) break;
    const int64_t shared = std::min(gap.end, events.end_ns(row)) - std::max(gap.begin, events.start_ns[row]);
    if (shared <= 0) continue;
    int64_t& sum = time_of[events.name[row]];
    sum += shared;
    best = std::max(best, {sum, events.name[row]});
  }
  return best.first * 4 >= gap.end - gap.begin ? best.second : kNone;
}

// `begin` and `end` are the step on the host, used where no device gives a window of its own.
StepTime Summary::breakdown(Roles roles, std::string_view name, int64_t begin, int64_t end) const {
  StepTime time;
  time.step = name;
  if (roles.first > roles.last) roles.first = begin, roles.last = end;
  time.begin_ns = trace_.has_device ? roles.first : begin;
  time.end_ns = trace_.has_device ? roles.last : end;
  const IntervalSet window{{time.begin_ns, time.end_ns}};
  const IntervalSet communication = intersection(united(std::move(roles.communication)), window);
  const IntervalSet issue = united(std::move(roles.issue));
  const IntervalSet compute = intersection(difference(united(std::move(roles.compute)), issue), window);
  const IntervalSet exposed = difference(communication, compute);
  const IntervalSet busy = united(compute, communication);
  time.computing_us = microseconds(length_of(compute));
  time.communication_us = microseconds(length_of(communication));
  time.exposed_us = microseconds(length_of(exposed));
  time.overlapped_us = microseconds(length_of(communication) - length_of(exposed));
  time.free_us = microseconds(length_of(window) - length_of(busy));
  time.copies_us = microseconds(length_of(difference(united(std::move(roles.copies)), busy)));
  time.bubble_us = microseconds(roles.bubble);
  time.stage_us = microseconds(length_of(window) - roles.bubble);
  time.exposed_without_bubble_us = std::max(0.0, time.exposed_us - time.bubble_us);
  if (trace_.has_device && begin < end) {
    time.preparing_us = microseconds(std::max<int64_t>(0, time.begin_ns - begin));
  }
  return time;
}

void Summary::run() {
  assign_steps();
  find_activities();
  collect();
  add_timeline();
  for (size_t i = 0; i < windows_.size(); ++i) {
    profile_.steps.push_back(
        breakdown(std::move(roles_[i]), windows_[i].step, windows_[i].begin, windows_[i].end));
  }
  Roles& all = roles_.back();
  if (all.first <= all.last) {
    const int64_t first = all.first, last = all.last;
    profile_.whole = breakdown(std::move(all), "", first, last);
    profile_.whole->preparing_us.reset();
    if (windows_.empty()) profile_.steps.push_back(*profile_.whole);
  }
  if (outside_ > 0) {
    profile_.notes.push_back(
        fmt::format("{} device events were launched outside of every step and count in none", outside_));
  }
}

void add_damage(const ChromeTrace& trace, RankProfile* profile) {
  const TraceDamage& damage = trace.damage;
  if (!damage.text.empty()) profile->notes.push_back(damage.text);
  if (damage.events > 0)
    profile->notes.push_back(fmt::format("{} broken events were skipped", damage.events));
  if (damage.durations > 0) {
    profile->notes.push_back(
        fmt::format("{} events with a negative or impossible duration were left out", damage.durations));
  }
}

}  // namespace

void summarize_trace(ChromeTrace trace, RankProfile* profile) {
  add_damage(trace, profile);
  profile->bytes += trace.bytes;
  profile->events += trace.seen;
  profile->on_host = !trace.has_device;
  Summary(trace, profile).run();
  profile->names = std::move(trace.events.names);
}

std::vector<RankProfile> summarize_all_ranks(const ChromeTrace& trace) {
  std::map<int, RankProfile> profiles;
  const EventTable& events = trace.events;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events.arguments[i] < 0) continue;
    const CallArguments& arguments = events.calls[static_cast<size_t>(events.arguments[i])];
    if (arguments.rank < 0) continue;
    RankProfile& profile = profiles[arguments.rank];
    const auto moved = [&](uint32_t name) {
      return name == kNone ? kNone : profile.names.intern(events.names[name]);
    };
    ProfiledCall call;
    call.start_ns = events.start_ns[i];
    call.end_ns = events.end_ns(i);
    call.elements = arguments.elements;
    call.sequence = arguments.sequence;
    call.waited_ns = arguments.waited_ns;
    call.longest_wait_rank = arguments.longest_wait_rank;
    call.collective = moved(arguments.collective != kNone ? arguments.collective : events.name[i]);
    call.group = moved(arguments.group);
    call.type = moved(arguments.type);
    call.point_to_point = is_message(profile.names[call.collective]);
    call.sends = is_send(profile.names[call.collective]);
    call.peer = call.sends ? arguments.destination : arguments.source;
    profile.calls.push_back(call);
  }
  std::vector<RankProfile> result;
  for (auto& [rank, profile] : profiles) {
    profile.rank = rank;
    profile.on_host = true;
    profile.bytes = trace.bytes / profiles.size();
    profile.events = profile.calls.size();
    const auto host = trace.header.host_of_rank.find(rank);
    if (host != trace.header.host_of_rank.end()) profile.host = host->second;
    add_damage(trace, &profile);
    result.push_back(std::move(profile));
  }
  return result;
}

}  // namespace collective_ops
