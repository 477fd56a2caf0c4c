// What ClusterReport says: a page for a terminal, and JSON for programs.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "analysis/cluster.h"
#include "trace/timeline.h"

namespace collective_ops {
namespace {

constexpr size_t kMostRows = 32;

struct Sums {
  double computing = 0, exposed = 0, overlapped = 0, free = 0;
};

Sums sums_of(const RankProfile& profile) {
  Sums sums;
  for (const StepTime& step : profile.steps) {
    sums.computing += step.computing_us / 1e3;
    sums.exposed += step.exposed_us / 1e3;
    sums.overlapped += step.overlapped_us / 1e3;
    sums.free += step.free_us / 1e3;
  }
  return sums;
}

std::string ranges_of(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += text.empty() ? "" : ", ";
    text += last > i ? fmt::format("{}-{}", ranks[i], ranks[last]) : fmt::format("{}", ranks[i]);
    i = last;
  }
  return text;
}

void print_ranks(const ClusterReport& report, std::string* out) {
  const auto& ranks = report.profiles.ranks;
  *out += fmt::format("\n{:>6} {:>6} {:>12} {:>12} {:>12} {:>12} {:>12} {:>10}\n", "rank", "steps",
                      "computing", "exposed comm", "overlapped", "free", "waited", "times last");
  for (size_t row = 0; row < ranks.size() && row < kMostRows; ++row) {
    const Sums sums = sums_of(ranks[row]);
    const RankWaiting& waiting = report.waits.waiting[row];
    const auto number = [&](double value, bool known) {
      return known ? fmt::format("{:.3f}", value) : std::string("-");
    };
    const bool steps = !ranks[row].steps.empty();
    *out += fmt::format("{:>6} {:>6} {:>12} {:>12} {:>12} {:>12} {:>12} {:>10}\n", ranks[row].rank,
                        ranks[row].steps.size(), number(sums.computing, steps), number(sums.exposed, steps),
                        number(sums.overlapped, steps), number(sums.free, steps),
                        number(waiting.waited_ms, waiting.calls > 0), waiting.times_last);
  }
  if (ranks.size() > kMostRows)
    *out += fmt::format("   ... {} more in the files\n", ranks.size() - kMostRows);
  *out += "ms over all steps; exposed: no computation hides it; waited: until the last rank came to a call\n";
}

void print_verdicts(const ClusterReport& report, std::string* out) {
  const WaitAnalysis& waits = report.waits;
  if (waits.calls.empty()) {
    *out += "\nslow ranks: not known; no call is in the profiles of two ranks\n";
  } else if (waits.slow.empty()) {
    *out += fmt::format(
        "\nslow ranks: none ({} calls compared; late ranks cost {:.3f} ms, no rank in particular)\n",
        waits.calls.size(), waits.lost_ms);
  }
  for (const SlowRank& slow : waits.slow) {
    *out += fmt::format(
        "\nslow rank {} (confidence {}): {:.3f} ms late in all, last in {} of the {} calls that lost most\n"
        "  why: {}\n  see: {}\n",
        slow.rank, slow.confidence, slow.late_ms, slow.times_last, slow.calls, slow.cause, slow.evidence);
  }
  if (!report.links.links.empty() && report.links.slow.empty()) {
    *out += fmt::format("slow links: none of {}\n", report.links.links.size());
  }
  for (size_t i = 0; i < report.links.slow.size() && i < kMostRows; ++i) {
    const SlowLink& slow = report.links.slow[i];
    *out += fmt::format(
        "slow link {}-{} ({}): {:.2f} GB/s where {:.2f} are usual, {:.3f} ms lost\n  why: {}\n",
        slow.link.source, slow.link.destination, slow.link.transport, slow.link.gigabytes_per_second,
        slow.usual_gigabytes_per_second, slow.lost_ms, slow.cause);
  }
}

// Findings of groups and waits; what is wrong with files.
std::vector<std::string> notes_of(const ClusterReport& report) {
  std::vector<std::string> notes;
  if (!report.profiles.missing_ranks.empty()) {
    notes.push_back(fmt::format("of {} ranks, there is no profile of {}", report.profiles.world_size,
                                ranges_of(report.profiles.missing_ranks)));
  }
  notes.insert(notes.end(), report.groups.findings.begin(), report.groups.findings.end());
  notes.insert(notes.end(), report.waits.findings.begin(), report.waits.findings.end());
  if (const TimelineSelection& timeline = report.timeline; timeline.left_out > 0) {
    notes.push_back(
        fmt::format("the timeline has the {} longest of {} events; what is not in it took at most {:.3f} ms",
                    timeline.events, timeline.events + timeline.left_out,
                    static_cast<double>(timeline.longest_left_out_ns) / 1e6));
  }
  return notes;
}

template <typename List, typename Print>
std::string json_list(const List& list, const Print& print) {
  std::string text = "[";
  for (const auto& element : list) text += (text.size() > 1 ? ",\n  " : "\n  ") + print(element);
  return text + (list.empty() ? "]" : "\n]");
}

std::string json_of(const StepTime& step) {
  return fmt::format(
      "{{\"step\": {}, \"computing_us\": {}, \"communication_us\": {}, \"exposed_communication_us\": {}, "
      "\"overlapped_us\": {}, \"free_us\": {}, \"copies_us\": {}, \"stage_us\": {}, \"bubble_us\": {}, "
      "\"preparing_us\": {}, "
      "\"begin_ns\": {}, \"end_ns\": {}}}",
      json_text(step.step), step.computing_us, step.communication_us, step.exposed_us, step.overlapped_us,
      step.free_us, step.copies_us, step.stage_us, step.bubble_us,
      step.preparing_us ? fmt::format("{}", *step.preparing_us) : std::string("null"), step.begin_ns,
      step.end_ns);
}

std::string json_ranks(const ClusterReport& report) {
  std::string text = "[";
  for (size_t row = 0; row < report.profiles.ranks.size(); ++row) {
    const RankProfile& profile = report.profiles.ranks[row];
    const RankWaiting& waiting = report.waits.waiting[row];
    text += fmt::format(
        "{}\n {{\"rank\": {}, \"host\": {}, \"format\": {}, \"source\": {}, \"events\": {}, \"bytes\": {}, "
        "\"calls\": {},"
        "\n  \"waiting\": {{\"calls\": {}, \"waited_ms\": {}, \"moved_ms\": {}, \"late_ms\": {}, "
        "\"times_last\": {}}},"
        "\n  \"whole\": {},\n  \"steps\": {}}}",
        row == 0 ? "" : ",", profile.rank, json_text(profile.host), json_text(profile.format),
        json_text(profile.source), profile.events, profile.bytes, profile.calls.size(), waiting.calls,
        waiting.waited_ms, waiting.moved_ms, waiting.late_ms, waiting.times_last,
        profile.whole ? json_of(*profile.whole) : "null",
        json_list(profile.steps, [](const StepTime& step) { return json_of(step); }));
  }
  return text + "]";
}

}  // namespace

std::string ShardReport::text() const {
  std::vector<int> ranks;
  for (const RankProfile& profile : profiles.ranks) ranks.push_back(profile.rank);
  std::string out = fmt::format("{} ranks ({}), {} events, {:.1f} MB\n", ranks.size(), ranges_of(ranks),
                                profiles.events, static_cast<double>(profiles.bytes) / 1e6);
  for (const ProfileProblem& problem : profiles.problems) {
    out += fmt::format("  {}: {}\n", problem.path, problem.text);
  }
  return out;
}

std::string ClusterReport::text() const {
  std::string out =
      fmt::format("{} of {} ranks, {} events, {:.1f} MB\n", profiles.ranks.size(),
                  std::max<size_t>(profiles.ranks.size(), static_cast<size_t>(profiles.world_size)),
                  profiles.events, static_cast<double>(profiles.bytes) / 1e6);
  print_ranks(*this, &out);
  print_verdicts(*this, &out);
  const std::vector<std::string> notes = notes_of(*this);
  if (!notes.empty()) out += "\n";
  for (size_t i = 0; i < notes.size() && i < kMostRows; ++i) out += fmt::format("note: {}\n", notes[i]);
  if (!profiles.problems.empty()) out += "\nnot used, or not wholly:\n";
  for (size_t i = 0; i < profiles.problems.size() && i < kMostRows; ++i) {
    out += fmt::format("  {}: {}\n", profiles.problems[i].path, profiles.problems[i].text);
  }
  if (profiles.problems.size() > kMostRows) {
    out += fmt::format("  ... {} more\n", profiles.problems.size() - kMostRows);
  }
  if (!profiles.ignored.empty())
    out += fmt::format("\n{} JSON files are no profiles\n", profiles.ignored.size());
  out += "\nwritten:\n";
  for (const auto& file : files) out += fmt::format("  {}\n", file.string());
  return out;
}

std::string ClusterReport::json() const {
  const auto problem = [](const ProfileProblem& p) {
    return fmt::format("{{\"path\": {}, \"problem\": {}}}", json_text(p.path), json_text(p.text));
  };
  const auto slow_rank = [](const SlowRank& s) {
    return fmt::format(
        "{{\"rank\": {}, \"confidence\": {}, \"late_ms\": {}, \"times_last\": {}, \"calls\": {}, \"cause\": "
        "{}, "
        "\"evidence\": {}}}",
        s.rank, json_text(s.confidence), s.late_ms, s.times_last, s.calls, json_text(s.cause),
        json_text(s.evidence));
  };
  const auto slow_link = [](const SlowLink& s) {
    return fmt::format(
        "{{\"source\": {}, \"destination\": {}, \"transport\": {}, \"bandwidth_gb_s\": {}, \"usual_gb_s\": "
        "{}, "
        "\"lost_ms\": {}, \"cause\": {}}}",
        s.link.source, s.link.destination, json_text(s.link.transport), s.link.gigabytes_per_second,
        s.usual_gigabytes_per_second, s.lost_ms, json_text(s.cause));
  };
  const auto text_of = [](const std::string& text) { return json_text(text); };
  std::vector<std::string> paths;
  for (const auto& file : files) paths.push_back(file.string());
  return fmt::format(
      "{{\"format\": 1,\n\"partial\": {},\n\"world_size\": {},\n\"missing_ranks\": [{}],\n\"events\": {},\n"
      "\"bytes\": {},\n\"ranks\": {},\n\"matched_calls\": {},\n\"lost_ms\": {},\n\"slow_ranks\": {},\n"
      "\"slow_links\": {},\n\"notes\": {},\n\"problems\": {},\n\"ignored\": {},\n\"files\": {}}}\n",
      partial(), profiles.world_size, fmt::join(profiles.missing_ranks, ", "), profiles.events,
      profiles.bytes, json_ranks(*this), waits.calls.size(), waits.lost_ms, json_list(waits.slow, slow_rank),
      json_list(links.slow, slow_link), json_list(notes_of(*this), text_of),
      json_list(profiles.problems, problem), json_list(profiles.ignored, text_of), json_list(paths, text_of));
}

}  // namespace collective_ops
