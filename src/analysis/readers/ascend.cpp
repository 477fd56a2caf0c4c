#include "analysis/readers/ascend.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "analysis/readers/ascend_communication.h"
#include "analysis/readers/ascend_db.h"
#include "analysis/readers/ascend_kernels.h"
#include "analysis/readers/csv_text.h"
#include "analysis/readers/json_scanner.h"
#include "analysis/readers/text_source.h"

namespace collective_ops {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOutputFolder = "ASCEND_PROFILER_OUTPUT";

// The text of a file, or a note; nothing where there is no such file.
std::optional<std::string> text_of(const fs::path& path, RankProfile* profile) {
  std::error_code error;
  if (!fs::exists(path, error)) return {};
  auto whole = read_whole(path);
  if (!whole.ok()) {
    profile->notes.push_back(whole.status().message());
    return {};
  }
  if (!whole->problem.empty()) {
    profile->notes.push_back(fmt::format("{}: {}", path.filename().string(), whole->problem));
  }
  profile->bytes += whole->text.size();
  return std::move(whole->text);
}

fs::path info_file(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("profiler_info") && name.ends_with(".json")) found.push_back(entry.path());
  }
  return found.empty() ? fs::path() : *std::min_element(found.begin(), found.end());
}

// What profiler_info says of the profile.
struct ProfilerInfo {
  std::optional<int> rank;
  bool ours = false;  // made by collective_ops.profiler, not by torch_npu
};

ProfilerInfo read_info(const fs::path& file) {
  ProfilerInfo info;
  const auto whole = read_whole(file);
  if (!whole.ok()) return info;
  JsonScanner scanner(whole->text);
  std::string_view key, text;
  if (!scanner.enter('{')) return info;
  while (scanner.next_key(&key)) {
    info.ours |= key == "collective_ops";
    if (key != "rank_id" || scanner.peek() == '[' || scanner.peek() == '{') {
      scanner.skip();
    } else if (scanner.scalar(&text)) {
      if (const auto rank = integer_of(text); rank && *rank >= 0) info.rank = static_cast<int>(*rank);
    }
  }
  return info;
}

// Why nothing of a directory can be used, and what to do.
std::string reason_of_nothing(const fs::path& directory, bool raw) {
  const fs::path file = info_file(directory);
  if (!file.empty() && read_info(file).ours) {
    return "it holds no step and no call: the recorded range was empty or the job ended inside it; "
           "`collective-ops profile parse` makes the files anew where raw data are there";
  }
  if (raw) {
    return "the profile is raw: parse it on the training machine with torch_npu.profiler.profiler.analyse()";
  }
  return "no step_trace_time.csv, communication.json, communication_matrix.json or analysis.db with content";
}

void read_step_times(std::string_view text, RankProfile* profile) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const std::vector<std::string> header = cells_of(next_line(&text));
  const auto column = [&](std::string_view name) {
    return static_cast<size_t>(std::find(header.begin(), header.end(), name) - header.begin());
  };
  const size_t step = column("Step"), computing = column("Computing");
  if (step == header.size() || computing == header.size()) {
    profile->notes.push_back("step_trace_time.csv: no columns Step and Computing; not used");
    return;
  }
  while (!text.empty()) {
    const std::vector<std::string> cells = cells_of(next_line(&text));
    if (cells.size() < 2) continue;
    if (cells.size() != header.size()) {
      profile->notes.push_back("step_trace_time.csv: a row is cut off and left out");
      continue;
    }
    const auto value = [&](std::string_view name) {
      const size_t index = column(name);
      return index < cells.size() ? double_of(cells[index]) : 0.0;
    };
    StepTime time;
    time.step = cells[step];
    time.computing_us = value("Computing");
    time.exposed_us = value("Communication(Not Overlapped)");
    time.overlapped_us = value("Overlapped");
    time.communication_us = value("Communication");
    time.free_us = value("Free");
    time.stage_us = value("Stage");
    time.bubble_us = value("Bubble");
    time.exposed_without_bubble_us = value("Communication(Not Overlapped and Exclude Receive)");
    if (column("Preparing") < header.size()) time.preparing_us = value("Preparing");
    profile->steps.push_back(std::move(time));
  }
}

void read_parallel_sizes(JsonScanner* scanner, RankProfile* profile) {
  std::string_view key;
  if (scanner->peek() != '{' || !scanner->enter('{')) return;
  while (scanner->next_key(&key)) {
    int* target = nullptr;
    if (key == "tensor_model_parallel_size") target = &profile->parallel.tensor;
    if (key == "pipeline_model_parallel_size") target = &profile->parallel.pipeline;
    if (key == "data_parallel_size") target = &profile->parallel.data;
    if (key == "context_parallel_size") target = &profile->parallel.context;
    if (key == "world_size") target = &profile->parallel.world;
    if (target == nullptr) {
      scanner->skip();
    } else {
      *target = static_cast<int>(std::clamp<int64_t>(scanner->integer(), 0, INT32_MAX));
    }
  }
}

void read_group(std::string_view id, JsonScanner* scanner, RankProfile* profile) {
  ProfiledGroup group;
  group.id = unescaped(id);
  group.hash = ascend_group_hash(group.id);
  std::string_view key, text;
  if (!scanner->enter('{')) return;
  while (scanner->next_key(&key)) {
    if (key == "group_name" && scanner->peek() == '"') {
      if (scanner->string(&text)) group.description = unescaped(text);
    } else if (key == "global_ranks") {
      group.ranks = rank_list(scanner);
    } else {
      scanner->skip();
    }
  }
  profile->groups.push_back(std::move(group));
}

void read_fact(std::string_view key, JsonScanner* scanner, RankProfile* profile) {
  std::string_view id;
  if (key == "distributed_args" && scanner->peek() == '{') {
    read_parallel_sizes(scanner, profile);
  } else if (key == "parallel_group_info" && scanner->peek() == '{') {
    scanner->enter('{');
    while (scanner->next_key(&id)) read_group(id, scanner, profile);
  } else {
    scanner->skip();
  }
}

// The directory is called <host>_<pid>_<time, 17 digits>_ascend_pt unless it was renamed.
std::string host_in_name(std::string name) {
  const auto drop_digits = [&](size_t least) {
    const size_t underscore = name.rfind('_');
    if (underscore == std::string::npos || name.size() - underscore - 1 < least ||
        name.find_first_not_of("0123456789", underscore + 1) != std::string::npos) {
      return false;
    }
    name.resize(underscore);
    return true;
  };
  const size_t suffix = name.rfind("_ascend_");
  if (suffix == std::string::npos) return {};
  name.resize(suffix);
  return drop_digits(14) && drop_digits(1) ? name : std::string();
}

}  // namespace

void read_ascend_metadata(std::string_view text, RankProfile* profile) {
  JsonScanner scanner(text);
  std::string_view key, quoted;
  if (!scanner.enter('{')) return;
  while (scanner.next_key(&key)) {
    if (scanner.peek() != '"') {
      read_fact(key, &scanner, profile);
    } else if (scanner.string(&quoted)) {  // some versions write objects as text, with every quote escaped
      const std::string inner = unescaped(quoted);
      JsonScanner inner_scanner(inner);
      read_fact(key, &inner_scanner, profile);
    }
  }
  if (!scanner.good()) {
    profile->notes.push_back(
        fmt::format("profiler_metadata.json: broken at byte {}; what precedes is used", scanner.position()));
  }
  profile->world_size = profile->parallel.world;
}

std::string ascend_group_hash(std::string_view id) {
  if (id.empty()) return {};
  uint32_t high = 0, low = 0;
  for (const char c : id) {
    const auto byte = static_cast<unsigned char>(c);
    high = high * 29 + byte;
    low = low * 131 + byte;
  }
  return std::to_string(uint64_t{high} << 32 | low);
}

bool is_ascend_directory(const fs::path& directory) {
  std::error_code error;
  if (fs::is_directory(directory / kOutputFolder, error)) return true;
  const std::string name = directory.filename().string();
  return (name.ends_with("ascend_pt") || name.ends_with("ascend_ms")) && !info_file(directory).empty();
}

std::optional<int> rank_of_ascend_directory(const fs::path& directory) {
  const fs::path file = info_file(directory);
  if (file.empty()) return {};
  if (const auto rank = read_info(file).rank) return rank;
  const std::string stem = file.stem().string();  // profiler_info_3
  const size_t underscore = stem.rfind('_');
  if (const auto rank = integer_of(stem.substr(underscore + 1)); rank && *rank >= 0) {
    return static_cast<int>(*rank);
  }
  return stem == "profiler_info" ? std::optional<int>(0) : std::nullopt;  // a single card has no number
}

Result<RankProfile> read_ascend_directory(const fs::path& directory, int rank) {
  RankProfile profile;
  profile.rank = rank;
  profile.source = directory.string();
  profile.format = "ascend_text";
  profile.host = host_in_name(directory.filename().string());
  const fs::path output = directory / kOutputFolder;
  if (const auto text = text_of(directory / "profiler_metadata.json", &profile))
    read_ascend_metadata(*text, &profile);
  if (const auto text = text_of(output / "step_trace_time.csv", &profile)) read_step_times(*text, &profile);
  if (const auto text = text_of(output / "communication.json", &profile)) {
    read_communication(*text, &profile);
  }
  if (const auto text = text_of(output / "communication_matrix.json", &profile)) {
    read_communication_matrix(*text, &profile);
  }
  if (const auto text = text_of(output / "kernel_details.csv", &profile)) {
    read_kernel_details(*text, &profile);
  }
  // Text is preferred where both were exported: it says the same.
  if (profile.steps.empty() && profile.operators.empty() && read_ascend_databases(output, &profile)) {
    profile.format = "ascend_db";
  }
  profile.events = profile.operators.size() + profile.matrix.size();
  if (!profile.steps.empty() || !profile.operators.empty() || !profile.matrix.empty()) return profile;
  std::error_code error;
  return Status(ErrorCode::kInvalidArgument, reason_of_nothing(directory, !fs::exists(output, error)));
}

}  // namespace collective_ops
