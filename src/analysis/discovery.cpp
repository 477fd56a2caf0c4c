#include "analysis/discovery.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "analysis/readers/ascend.h"

namespace collective_ops {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 16;

// Files that lie beside profiles and are none.
bool is_other_json(const std::string& name) {
  static constexpr std::array<std::string_view, 6> kOthers = {
      "profiler_info", "profiler_metadata", "communication", "cluster_", "op_args", "memory_"};
  return std::any_of(kOthers.begin(), kOthers.end(),
                     [&](std::string_view part) { return name.starts_with(part); });
}

class Walk {
 public:
  Walk(const ProfileInput& input, std::set<fs::path>* seen, Discovery* result)
      : root_(input.path.string()),
        shown_(input.shown.empty() ? root_ : input.shown),
        seen_(*seen),
        result_(*result) {}
  void visit(const fs::path& directory, int depth);
  void add(const fs::path& path, bool ascend);

 private:
  bool fresh(const fs::path& path);

  std::string root_, shown_;
  std::set<fs::path>& seen_;  // a link that leads back is followed once
  Discovery& result_;
};

bool Walk::fresh(const fs::path& path) {
  std::error_code error;
  return seen_.insert(fs::canonical(path, error)).second;
}

void Walk::add(const fs::path& path, bool ascend) {
  std::string shown = path.string();
  if (shown.starts_with(root_)) shown = shown_ + shown.substr(root_.size());
  result_.found.push_back({path, std::move(shown), ascend});
}

void Walk::visit(const fs::path& directory, int depth) {
  std::error_code error;
  if (depth > kDeepest || !fresh(directory)) return;
  if (is_ascend_directory(directory)) return add(directory, true);
  std::vector<fs::path> entries;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  if (error) result_.problems.push_back({directory.string(), "cannot be read: " + error.message()});
  std::sort(entries.begin(), entries.end());
  for (const fs::path& entry : entries) {
    const std::string name = entry.filename().string();
    if (fs::is_directory(entry, error)) {
      if (name != "cluster_analysis_output") visit(entry, depth + 1);
    } else if ((name.ends_with(".json") || name.ends_with(".json.gz")) && !is_other_json(name) &&
               fs::is_regular_file(entry, error)) {
      // Of a file that links lead to, the first name is taken.
      if (!fs::is_symlink(entry, error) || fresh(entry)) add(entry, false);
    }
  }
}

std::optional<int> digits_at(std::string_view text, size_t at) {
  int64_t value = 0;
  size_t i = at;
  for (; i < text.size() && i < at + 9 && std::isdigit(static_cast<unsigned char>(text[i])) != 0; ++i) {
    value = value * 10 + (text[i] - '0');
  }
  return i == at ? std::nullopt : std::optional<int>(static_cast<int>(value));
}

// The number behind one of the words, with or without one of the marks between them.
template <size_t kCount>
std::optional<int> number_behind(const std::string& name, const std::array<std::string_view, kCount>& words,
                                 std::string_view marks) {
  for (const std::string_view word : words) {
    for (size_t at = name.find(word); at != std::string::npos; at = name.find(word, at + 1)) {
      size_t digits = at + word.size();
      if (digits < name.size() && marks.find(name[digits]) != std::string_view::npos) ++digits;
      if (const auto number = digits_at(name, digits)) return number;
    }
  }
  return {};
}

std::optional<int> rank_in_name(const std::string& name) {
  static constexpr std::array<std::string_view, 2> kWords = {"rank", "worker"};
  if (const auto rank = number_behind(name, kWords, "-_[")) return rank;
  if (name.size() > 1 && name[0] == 'r') {
    const auto rank = digits_at(name, 1);
    if (rank && name[name.find_first_not_of("0123456789", 1)] == '-') return rank;
  }
  return {};
}

}  // namespace

Discovery discover(const std::vector<ProfileInput>& inputs) {
  Discovery result;
  std::set<fs::path> seen;
  std::error_code error;
  for (const ProfileInput& input : inputs) {
    Walk walk(input, &seen, &result);
    if (fs::is_directory(input.path, error)) {
      walk.visit(input.path, 0);
    } else {
      walk.add(input.path, false);
    }
  }
  return result;
}

int rank_in_path(const fs::path& path) {
  if (const auto rank = rank_in_name(path.filename().string())) return *rank;
  const std::string parent = path.parent_path().filename().string();
  if (const auto rank = rank_in_name(parent)) return *rank;
  const bool number =
      !parent.empty() && parent.size() < 7 && parent.find_first_not_of("0123456789") == std::string::npos;
  return number ? std::stoi(parent) : -1;
}

int64_t window_in_path(const fs::path& path) {
  static constexpr std::array<std::string_view, 2> kFolders = {"iteration", "iter"};
  static constexpr std::array<std::string_view, 2> kFiles = {"_step", "iteration"};
  if (const auto window = number_behind(path.filename().string(), kFiles, "-_")) return *window;
  const std::string parent = path.parent_path().filename().string();
  if (!parent.starts_with("iter")) return -1;
  return number_behind(parent, kFolders, "-_").value_or(-1);
}

int64_t time_in_path(const fs::path& path) {
  const std::string name = path.filename().string();
  int64_t time = 0;
  for (size_t at = 0; at < name.size();) {
    const size_t begin = name.find_first_of("0123456789", at);
    if (begin == std::string::npos) break;
    at = std::min(name.find_first_not_of("0123456789", begin), name.size());
    if (at - begin >= 13 && at - begin <= 18) time = std::stoll(name.substr(begin, at - begin));
  }
  return time;
}

}  // namespace collective_ops
