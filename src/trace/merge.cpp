#include "trace/merge.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trace/reader.h"
#include "trace/recorder.h"
#include "trace/timeline.h"

namespace collective_ops {
namespace {

constexpr std::string_view kPrefix = "comm_trace.";
constexpr std::string_view kSuffix = ".bin";

// What the name of a file says: comm_trace.<16 hex digits>.rank<k>.bin
struct FileName {
  std::string hash;
  int rank = 0;
};

std::optional<FileName> parse_name(const std::filesystem::path& path) {
  const std::string text = path.filename().string();
  std::string_view name = text;
  constexpr size_t kHashDigits = 16;
  constexpr std::string_view kRank = ".rank";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  if (name.size() <= kPrefix.size() + kHashDigits + kRank.size() + kSuffix.size()) return std::nullopt;
  name = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  if (name.substr(kHashDigits, kRank.size()) != kRank) return std::nullopt;
  FileName found{std::string(name.substr(0, kHashDigits)), 0};
  name.remove_prefix(kHashDigits + kRank.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), found.rank);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return found;
}

struct Broken {
  std::filesystem::path path;
  std::string hash;  // of its name, "" where it has another
  std::string reason;
};

struct Found {
  std::vector<TraceFileReader> files;
  std::vector<Broken> broken;
};

// One rank's file with what the first pass over it showed.
struct Source {
  TraceFileInfo info;
  std::map<uint32_t, TraceGroup> groups;
  uint64_t calls = 0;
  int64_t first_ns = 0;  // earliest issue, monotonic; the opening where there is no call
  std::string problem;
};

Result<Found> find_files(std::span<const std::filesystem::path> inputs) {
  std::set<std::filesystem::path> paths;
  for (const auto& input : inputs) {
    std::error_code error;
    if (!std::filesystem::is_directory(input, error)) {
      paths.insert(input);
      continue;
    }
    std::filesystem::directory_iterator entries(input, error);
    for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
      if (parse_name(entries->path())) paths.insert(entries->path());
    }
    if (error) {
      return Status(ErrorCode::kSystem,
                    fmt::format("merging traces: reading {}: {}", input.string(), error.message()));
    }
  }
  Found found;
  for (const auto& path : paths) {
    auto reader = TraceFileReader::open(path);
    if (reader.ok()) {
      found.files.push_back(std::move(*reader));
    } else {
      const auto name = parse_name(path);
      found.broken.push_back({path, name ? name->hash : "", reader.status().message()});
    }
  }
  if (found.files.empty()) {
    std::vector<std::string> names;
    for (const auto& input : inputs) names.push_back(input.string());
    for (const Broken& broken : found.broken) names.push_back(broken.reason);
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("merging traces: no usable comm_trace.*.rank*.bin in {}; run the job with "
                              "COLLECTIVE_OPS_TRACE=1, or name the directory it ran in",
                              fmt::join(names, "; ")));
  }
  return found;
}

bool started_earlier(const TraceFileReader& a, const TraceFileReader& b) {
  return a.info().opened_real_ns < b.info().opened_real_ns;
}

// Leaves the files of one start of one job, rank by rank; the others are named in the summary.
Status choose_job(Found& found, const std::string& wanted, MergeSummary& summary) {
  std::sort(found.files.begin(), found.files.end(), started_earlier);
  const TraceFileReader* newest = nullptr;
  std::set<std::string> jobs;
  for (const auto& file : found.files) {
    const std::string& job = file.info().job_id;
    jobs.insert(job);
    if (wanted.empty() || wanted == job || wanted == job_hash(job)) newest = &file;
  }
  if (newest == nullptr) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("merging traces: no job \"{}\" here; there are: \"{}\"", wanted,
                              fmt::join(jobs, "\", \"")));
  }
  summary.job = newest->info().job_id;
  summary.world_size = newest->info().world_size;
  const uint64_t run = newest->info().run;
  jobs.erase(summary.job);
  summary.other_jobs.assign(jobs.begin(), jobs.end());
  std::vector<TraceFileReader> chosen;
  for (auto& file : found.files) {
    const TraceFileInfo& info = file.info();
    if (info.job_id != summary.job) continue;
    if (info.run == run && info.world_size == summary.world_size) {
      chosen.push_back(std::move(file));
    } else {
      summary.older_files.push_back(info.path.string());
    }
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const auto& a, const auto& b) { return a.info().rank < b.info().rank; });
  found.files = std::move(chosen);
  for (size_t i = 1; i < found.files.size(); ++i) {
    const TraceFileInfo& a = found.files[i - 1].info();
    const TraceFileInfo& b = found.files[i].info();
    if (a.rank == b.rank) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("merging traces: {} and {} are both of rank {}; name one", a.path.string(),
                                b.path.string(), a.rank));
    }
  }
  return Status();
}

TraceGroup world(int world_size) {
  TraceGroup group{0, "default_pg", {}};
  for (int rank = 0; rank < world_size; ++rank) group.ranks.push_back(rank);
  return group;
}

Source survey(TraceFileReader& file) {
  Source source;
  source.info = file.info();
  source.groups[0] = world(source.info.world_size);
  source.first_ns = source.info.opened_monotonic_ns;
  for (auto entry = file.next(); entry != TraceFileReader::Entry::kEnd; entry = file.next()) {
    if (entry == TraceFileReader::Entry::kGroup) {
      if (file.group().id != 0) source.groups[file.group().id] = file.group();
      continue;
    }
    source.first_ns = std::min(source.first_ns, file.call().issued_ns);
    ++source.calls;
  }
  source.problem = file.problem();
  return source;
}

// Monotonic time is one clock per boot of a host, so all ranks of a host use one pair, that of their
// lowest rank: their own pairs differ by what the real clock was adjusted in between.
std::vector<int64_t> real_minus_monotonic(const std::vector<Source>& sources) {
  std::map<std::string, int64_t> of_host;
  std::vector<int64_t> offsets;
  for (const Source& source : sources) {
    const int64_t own = source.info.opened_real_ns - source.info.opened_monotonic_ns;
    offsets.push_back(
        source.info.boot_id.empty() ? own : of_host.try_emplace(source.info.boot_id, own).first->second);
  }
  return offsets;
}

std::vector<TraceGroup> groups_of(const std::vector<Source>& sources, int world_size) {
  std::vector<TraceGroup> groups = {world(world_size)};
  for (const Source& source : sources) {
    for (const auto& [id, group] : source.groups) {
      if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    }
  }
  return groups;
}

void describe_ranks(const std::vector<Source>& sources, MergeSummary& summary) {
  std::set<int> missing;
  for (int rank = 0; rank < summary.world_size; ++rank) missing.insert(rank);
  for (const Source& source : sources) {
    const TraceFileInfo& info = source.info;
    missing.erase(info.rank);
    summary.ranks.push_back({info.rank, info.path.string(), info.host, info.pid, source.calls,
                             info.lost_calls, info.closed, info.recording_pid != 0, source.problem});
    summary.calls += source.calls;
  }
  summary.missing_ranks.assign(missing.begin(), missing.end());
}

Status write_timeline(const std::vector<Source>& sources, const MergeSummary& summary) {
  auto writer = TimelineWriter::create(summary.output);
  if (!writer.ok()) return writer.status();
  const std::vector<int64_t> offsets = real_minus_monotonic(sources);
  int64_t earliest = INT64_MAX;
  for (size_t i = 0; i < sources.size(); ++i) earliest = std::min(earliest, sources[i].first_ns + offsets[i]);
  constexpr int64_t kSecond = 1'000'000'000;
  const int64_t base = earliest - ((earliest % kSecond) + kSecond) % kSecond;
  (*writer)->begin(summary, groups_of(sources, summary.world_size), base);
  for (size_t i = 0; i < sources.size(); ++i) {
    const TimelineRank rank{&sources[i].info, offsets[i] - base, sources[i].groups};
    (*writer)->begin_rank(rank);
    auto file = TraceFileReader::open(sources[i].info.path);
    if (!file.ok()) return file.status();
    // A rank that still records may have written more since: the count of the first pass holds.
    for (uint64_t calls = 0; calls < sources[i].calls;) {
      const auto entry = file->next();
      if (entry == TraceFileReader::Entry::kEnd) break;
      if (entry == TraceFileReader::Entry::kGroup) continue;
      (*writer)->call(rank, file->call(), file->peers());
      ++calls;
    }
  }
  return (*writer)->finish();
}

}  // namespace

bool MergeSummary::complete() const {
  return missing_ranks.empty() && unreadable.empty() &&
         std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) {
           return rank.problem.empty() && rank.lost_calls == 0 && !rank.recording;
         });
}

std::string MergeSummary::text() const {
  std::string text = fmt::format("{}: {} calls of {} of {} ranks of job \"{}\"\n", output, calls,
                                 ranks.size(), world_size, job);
  if (!missing_ranks.empty()) text += fmt::format("missing: rank {}\n", fmt::join(missing_ranks, ", "));
  for (const MergedRank& rank : ranks) {
    if (!rank.problem.empty())
      text += fmt::format("damaged: rank {}: {}: {}\n", rank.rank, rank.path, rank.problem);
    if (rank.lost_calls > 0)
      text += fmt::format("rank {} had no room for its last {} calls\n", rank.rank, rank.lost_calls);
    if (rank.recording) text += fmt::format("rank {} (pid {}) is still recording\n", rank.rank, rank.pid);
    if (!rank.closed && !rank.recording)
      text += fmt::format("rank {} did not leave in order (killed?)\n", rank.rank);
  }
  for (const std::string& file : unreadable) text += fmt::format("unreadable: {}\n", file);
  if (!older_files.empty()) {
    text += fmt::format("left alone, of an earlier start of the job: {}\n", fmt::join(older_files, ", "));
  }
  if (!other_jobs.empty()) text += fmt::format("other jobs here: \"{}\"\n", fmt::join(other_jobs, "\", \""));
  if (!complete()) text += "the ranks' files are kept\n";
  return text;
}

Result<MergeSummary> merge_traces(std::span<const std::filesystem::path> inputs,
                                  const MergeOptions& options) {
  auto found = find_files(inputs);
  if (!found.ok()) return found.status();
  MergeSummary summary;
  summary.output = options.output.string();
  if (Status status = choose_job(*found, options.job, summary); !status.ok()) return status;
  for (const Broken& broken : found->broken) {
    if (broken.hash.empty() || broken.hash == job_hash(summary.job))
      summary.unreadable.push_back(broken.reason);
  }
  const bool some_suffice = !options.output_of_some.empty();
  const auto is_open = [](const TraceFileReader& file) { return !file.info().closed; };
  if (some_suffice && std::any_of(found->files.begin(), found->files.end(), is_open)) {
    summary.left_to_others = true;
    return summary;
  }
  std::vector<Source> sources;
  for (TraceFileReader& file : found->files) sources.push_back(survey(file));
  found->files.clear();  // closes them
  describe_ranks(sources, summary);
  if (some_suffice && !summary.missing_ranks.empty()) summary.output = options.output_of_some.string();
  if (Status status = write_timeline(sources, summary); !status.ok()) return status;
  if (!options.keep_files && summary.complete()) {
    for (const Source& source : sources) {
      std::error_code ignored;
      std::filesystem::remove(source.info.path, ignored);
    }
    summary.files_removed = true;
  }
  return summary;
}

}  // namespace collective_ops
