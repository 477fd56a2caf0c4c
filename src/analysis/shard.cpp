#include "analysis/shard.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <system_error>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "analysis/profile_names.h"
#include "analysis/runs.h"
#include "analysis/sqlite.h"

namespace collective_ops {
namespace {

namespace fs = std::filesystem;

// Changes with every change of what is stored; sizes catch most that are forgotten.
constexpr int64_t kVersion = 3;
constexpr int64_t kLayout = sizeof(ProfiledCall) * 1'000'000 + sizeof(MatrixEntry) * 1000 +
                            sizeof(OperatorStatistics) + sizeof(OperatorTimes) + sizeof(TimelineSlice);

// One list of fields writes and reads them: `archive(value)` per field.
class Writer {
 public:
  template <typename Value>
  void operator()(Value& value) {
    if constexpr (std::is_trivially_copyable_v<Value>) {
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    } else {
      fields(*this, value);
    }
  }
  template <typename Element>
  void operator()(std::vector<Element>& list) {
    uint64_t size = list.size();
    (*this)(size);
    if constexpr (std::is_trivially_copyable_v<Element>) {
      bytes.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(Element));
    } else {
      for (Element& element : list) (*this)(element);
    }
  }
  void operator()(std::string& text) {
    uint64_t size = text.size();
    (*this)(size);
    bytes += text;
  }
  std::string bytes;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  template <typename Value>
  void operator()(Value& value) {
    if constexpr (std::is_trivially_copyable_v<Value>) {
      take(&value, sizeof(value));
    } else {
      fields(*this, value);
    }
  }
  template <typename Element>
  void operator()(std::vector<Element>& list) {
    const uint64_t size = count(std::is_trivially_copyable_v<Element> ? sizeof(Element) : 1);
    list.resize(size);
    if constexpr (std::is_trivially_copyable_v<Element>) {
      take(list.data(), size * sizeof(Element));
    } else {
      for (Element& element : list) (*this)(element);
    }
  }
  void operator()(std::string& text) {
    text.resize(count(1));
    take(text.data(), text.size());
  }
  bool whole() const { return good_ && left_.empty(); }

 private:
  // How many elements follow, each of at least so many bytes.
  uint64_t count(size_t bytes) {
    uint64_t size = 0;
    take(&size, sizeof(size));
    if (size > left_.size() / bytes) good_ = false;
    return good_ ? size : 0;
  }
  void take(void* target, size_t size) {
    good_ = good_ && size <= left_.size();
    if (!good_ || size == 0) return;
    std::memcpy(target, left_.data(), size);
    left_.remove_prefix(size);
  }

  std::string_view left_;
  bool good_ = true;
};

template <typename Archive>
void fields(Archive& archive, StepTime& time) {
  archive(time.step);
  for (double* value :
       {&time.computing_us, &time.communication_us, &time.exposed_us, &time.overlapped_us, &time.free_us,
        &time.stage_us, &time.bubble_us, &time.exposed_without_bubble_us, &time.copies_us}) {
    archive(*value);
  }
  double preparing = time.preparing_us.value_or(std::numeric_limits<double>::quiet_NaN());
  archive(preparing);
  time.preparing_us = preparing == preparing ? std::optional<double>(preparing) : std::nullopt;
  archive(time.begin_ns);
  archive(time.end_ns);
}

template <typename Archive>
void fields(Archive& archive, LinkTraffic& link) {
  archive(link.link);
  archive(link.megabytes);
  archive(link.milliseconds);
  archive(link.gigabytes_per_second);
  archive(link.large_packet_ratio);
  archive(link.sizes);
}

template <typename Archive>
void fields(Archive& archive, CommunicationOperator& op) {
  archive(op.step);
  archive(op.name);
  archive(op.group);
  archive(op.point_to_point);
  archive(op.times);
  archive(op.links);
}

template <typename Archive>
void fields(Archive& archive, ProfiledGroup& group) {
  archive(group.hash);
  archive(group.id);
  archive(group.description);
  archive(group.ranks);
}

// But for the names, which stand before.
template <typename Archive>
void fields(Archive& archive, RankProfile& profile) {
  archive(profile.rank);
  archive(profile.device);
  for (std::string* text : {&profile.host_uid, &profile.host, &profile.source, &profile.format}) {
    archive(*text);
  }
  archive(profile.run.id);
  archive(profile.run.started);
  archive(profile.run.host);
  archive(profile.run.clock_host);
  archive(profile.run.clock_error_ns);
  archive(profile.world_size);
  archive(profile.on_host);
  archive(profile.parallel);
  archive(profile.steps);
  std::vector<StepTime> whole;
  if (profile.whole) whole.push_back(*profile.whole);
  archive(whole);
  if (!whole.empty()) profile.whole = std::move(whole.front());
  archive(profile.calls);
  archive(profile.operators);
  archive(profile.matrix);
  archive(profile.operator_times);
  archive(profile.timeline.slices);
  archive(profile.timeline.left_out);
  archive(profile.timeline.longest_left_out_ns);
  archive(profile.groups);
  archive(profile.bytes);
  archive(profile.events);
}

std::string bytes_of(RankProfile* profile) {
  Writer writer;
  std::vector<std::string> names;
  for (uint32_t id = 0; id < profile->names.size(); ++id) names.emplace_back(profile->names[id]);
  writer(names);
  writer(*profile);
  return std::move(writer.bytes);
}

// Nothing where the bytes are not those of a profile: every id and row is checked.
std::optional<RankProfile> profile_of(std::string_view bytes) {
  Reader reader(bytes);
  std::vector<std::string> names;
  RankProfile profile;
  reader(names);
  reader(profile);
  for (const std::string& name : names) profile.names.intern(name);
  bool sound = reader.whole() && profile.names.size() == names.size() && profile.rank >= 0 &&
               profile.rank < kMostRanks;
  for_each_name(&profile, [&](uint32_t& name) {
    sound &= name == CallArguments::kNoName || name < profile.names.size();
  });
  for (const ProfiledCall& call : profile.calls) {
    sound &= call.step == CallArguments::kNoName || call.step < profile.steps.size();
    sound &= call.collective < profile.names.size();
  }
  for (const TimelineSlice& slice : profile.timeline.slices) {
    sound &= slice.name < names.size() && slice.track < names.size() && slice.kind <= SliceKind::kCopy;
  }
  for (const OperatorStatistics& statistics : profile.operator_times) {
    sound &= statistics.kind <= OperatorKind::kHost && statistics.count > 0 && statistics.name < names.size();
  }
  if (!sound) return {};
  return profile;
}

void insert(ProfileSet* set, Database* database) {
  database->run("CREATE TABLE shard (key TEXT, value INTEGER)");
  database->run("CREATE TABLE rank (rank INTEGER, source TEXT, profile BLOB)");
  database->run("CREATE TABLE problem (path TEXT, text TEXT)");
  database->run("CREATE TABLE ignored (path TEXT)");
  Rows facts = database->rows("INSERT INTO shard VALUES (?, ?)");
  facts.bind("version").bind(kVersion).run();
  facts.bind("layout").bind(kLayout).run();
  facts.bind("bytes").bind(static_cast<int64_t>(set->bytes)).run();
  facts.bind("events").bind(static_cast<int64_t>(set->events)).run();
  Rows rank = database->rows("INSERT INTO rank VALUES (?, ?, ?)");
  for (RankProfile& profile : set->ranks) {
    rank.bind(profile.rank).bind(profile.source).bind_bytes(bytes_of(&profile)).run();
  }
  Rows problem = database->rows("INSERT INTO problem VALUES (?, ?)");
  for (const ProfileProblem& each : set->problems) problem.bind(each.path).bind(each.text).run();
  Rows ignored = database->rows("INSERT INTO ignored VALUES (?)");
  for (const std::string& path : set->ignored) ignored.bind(path).run();
}

// "" or why nothing of the shard can be used. Its profiles are added to `found`, all else to `set`.
std::string read_shard(const fs::path& path, const std::shared_ptr<SharedTexts>& texts,
                       std::vector<RankProfile>* found, ProfileSet* set) {
  auto database = Database::open_input(path);
  if (!database.ok()) return database.status().message();
  if (!(*database)->has_table("shard")) return "it is no shard of `analyze shard`";
  std::map<std::string, int64_t> facts;
  Rows rows = (*database)->rows("SELECT key, value FROM shard");
  while (rows.next()) facts[std::string(rows.text(0))] = rows.integer(1);
  if (facts["version"] != kVersion || facts["layout"] != kLayout) {
    return "it was written by another version of collective-ops; make it anew with this one";
  }
  set->bytes += static_cast<uint64_t>(facts["bytes"]);
  set->events += static_cast<uint64_t>(facts["events"]);
  Rows ranks = (*database)->rows("SELECT profile, source FROM rank ORDER BY rank");
  while (ranks.next()) {
    auto profile = profile_of(ranks.text(0));
    if (!profile) {
      set->problems.push_back(
          {path.string(), fmt::format("the profile of {} in it is damaged", ranks.text(1))});
      continue;
    }
    keep_used_names(&*profile, texts);
    found->push_back(std::move(*profile));
  }
  Rows problems = (*database)->rows("SELECT path, text FROM problem");
  while (problems.next()) {
    set->problems.push_back({std::string(problems.text(0)), std::string(problems.text(1))});
  }
  Rows ignored = (*database)->rows("SELECT path FROM ignored");
  while (ignored.next()) set->ignored.emplace_back(ignored.text(0));
  const std::string& problem = (*database)->problem();
  if (!problem.empty()) set->problems.push_back({path.string(), problem});
  return {};
}

// Each rank once, of the newest run.
void take_newest(std::vector<RankProfile> found, ProfileSet* set) {
  std::vector<RunCandidate> candidates;
  for (const RankProfile& profile : found) candidates.push_back({&profile, -1, 0});
  const std::vector<std::string> reasons = older_runs(candidates);
  std::vector<size_t> order(found.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return is_newer(candidates[a], candidates[b]); });
  std::map<int, std::string> sources;
  for (const size_t i : order) {
    RankProfile& profile = found[i];
    if (!reasons[i].empty()) {
      set->problems.push_back({profile.source, reasons[i]});
      continue;
    }
    const auto [first, fresh] = sources.emplace(profile.rank, profile.source);
    if (fresh) continue;
    set->problems.push_back(
        {profile.source,
         fmt::format("is of rank {}, as {} is, which is no older and was taken; move one away", profile.rank,
                     first->second)});
    profile.rank = -1;
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (reasons[i].empty() && found[i].rank >= 0) set->ranks.push_back(std::move(found[i]));
  }
}

}  // namespace

Status write_shard(ProfileSet* set, const fs::path& path) {
  return Database::write(path, [set](Database* database) { insert(set, database); });
}

Result<ProfileSet> read_shards(const std::vector<fs::path>& paths) {
  ProfileSet set;
  const auto texts = std::make_shared<SharedTexts>();
  std::vector<RankProfile> found;
  for (const fs::path& path : paths) {
    std::error_code error;
    std::string problem = "there is no such file";
    if (fs::exists(path, error)) problem = read_shard(path, texts, &found, &set);
    if (!problem.empty()) set.problems.push_back({path.string(), problem});
  }
  take_newest(std::move(found), &set);
  if (set.ranks.empty()) {
    std::string text = "no shard with profiles that can be used";
    for (const ProfileProblem& problem : set.problems) {
      text += fmt::format("\n  {}: {}", problem.path, problem.text);
    }
    return Status(ErrorCode::kInvalidArgument, text);
  }
  complete(&set);
  return set;
}

}  // namespace collective_ops
