#include "memory/headroom.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "memory/descriptor.h"

namespace collective_ops {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kUnlimited = uint64_t{1} << 62;  // cgroup v1 writes "no limit" as a number near 2^63

// Kept free of our own doing: page tables, and ranks of one cgroup that look at the same moment.
uint64_t reserve(const MemoryLimit& limit) {
  if (limit.name == "RLIMIT_AS") return 2 * kMiB;  // a mapping is aligned by mapping more first
  return std::min(32 * kMiB, limit.limit / 8);
}

// "" where the file cannot be read.
std::string read_text(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char piece[8192];
  while (file.valid()) {
    const ssize_t count = ::read(file.get(), piece, sizeof(piece));
    if (count <= 0) break;
    text.append(piece, static_cast<size_t>(count));
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

std::optional<uint64_t> to_number(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// The number behind `key` in lines "key value" or "key: value kB".
std::optional<uint64_t> value_of(std::string_view text, std::string_view key) {
  for (std::string_view line : split(text, '\n')) {
    if (!line.starts_with(key)) continue;
    line.remove_prefix(key.size());
    if (line.starts_with(':')) line.remove_prefix(1);
    if (line.starts_with(' ')) return to_number(line);
  }
  return std::nullopt;
}

struct CgroupVersion {
  std::string_view file_system;
  std::string_view limit;
  std::string_view usage;
  std::string_view cache_prefix;  // v1 counts children only in the "total_" lines
};
constexpr CgroupVersion kV1 = {"cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
constexpr CgroupVersion kV2 = {"cgroup2", "memory.max", "memory.current", ""};

// Where a hierarchy is mounted, and which of its folders stands at that place.
struct Mount {
  std::string point;
  std::string root;
};

bool has_option(std::string_view options, std::string_view wanted) {
  const auto all = split(options, ',');
  return std::find(all.begin(), all.end(), wanted) != all.end();
}

// A line of mountinfo: id parent major:minor ROOT POINT options [optional]* - TYPE source SUPEROPTIONS
std::optional<Mount> find_mount(std::string_view mountinfo, const CgroupVersion& version) {
  for (const std::string_view line : split(mountinfo, '\n')) {
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto left = split(line.substr(0, dash), ' ');
    const auto right = split(line.substr(dash + 3), ' ');
    if (left.size() < 5 || right.empty() || right[0] != version.file_system) continue;
    if (&version == &kV1 && (right.size() < 3 || !has_option(right[2], "memory"))) continue;
    return Mount{std::string(left[4]), std::string(left[3])};
  }
  return std::nullopt;
}

// The real one is read once: that file is long, and mounts of cgroups stay. A process may change cgroups.
std::optional<Mount> mount_of(const std::string& root, const CgroupVersion& version) {
  if (!root.empty()) return find_mount(read_text(root + "/proc/self/mountinfo"), version);
  static const auto both = [] {
    const std::string text = read_text("/proc/self/mountinfo");
    return std::pair(find_mount(text, kV1), find_mount(text, kV2));
  }();
  return &version == &kV1 ? both.first : both.second;
}

// The folder of this process in a hierarchy, from lines "id:controllers:/path".
std::optional<std::string> find_path(std::string_view cgroups, const CgroupVersion& version) {
  for (const std::string_view line : split(cgroups, '\n')) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool matches = &version == &kV1 ? has_option(controllers, "memory") : controllers.empty();
    if (matches) return std::string(line.substr(second + 1));
  }
  return std::nullopt;
}

std::optional<MemoryLimit> read_cgroup(const std::string& folder, std::string_view shown,
                                       const CgroupVersion& version) {
  const auto limit = to_number(read_text(fmt::format("{}/{}", folder, version.limit)));
  if (!limit || *limit >= kUnlimited) return std::nullopt;  // "max" is no number
  const uint64_t usage = to_number(read_text(fmt::format("{}/{}", folder, version.usage))).value_or(0);
  const std::string statistics = read_text(folder + "/memory.stat");
  const uint64_t cache =
      value_of(statistics, fmt::format("{}inactive_file", version.cache_prefix)).value_or(0) +
      value_of(statistics, fmt::format("{}active_file", version.cache_prefix)).value_or(0);
  return MemoryLimit{fmt::format("memory cgroup {}", shown), fmt::format("{}/{}", folder, version.limit),
                     *limit, usage - std::min(usage, cache),
                     "raise the memory limit of the container or cgroup, or start fewer ranks in it"};
}

// In a container the path may be the host's, of which the mount shows the lower part only.
void add_cgroups(const std::string& root, std::string_view cgroups, const CgroupVersion& version,
                 std::vector<MemoryLimit>& limits) {
  const auto mount = mount_of(root, version);
  const auto path = find_path(cgroups, version);
  if (!mount || !path) return;
  std::string relative = *path + "/";
  if (mount->root != "/" && relative.starts_with(mount->root + "/")) relative.erase(0, mount->root.size());
  for (;;) {
    while (!relative.empty() && relative.back() == '/') relative.pop_back();
    const std::string folder = fmt::format("{}{}{}", root, mount->point, relative);
    auto limit = read_cgroup(folder, relative.empty() ? "/" : relative, version);
    if (limit) limits.push_back(std::move(*limit));
    if (relative.empty()) return;
    const size_t slash = relative.rfind('/');
    relative.erase(slash == std::string::npos ? 0 : slash);
  }
}

void add_machine(const std::string& root, std::vector<MemoryLimit>& limits) {
  const std::string text = read_text(root + "/proc/meminfo");
  const auto total = value_of(text, "MemTotal");
  const auto available = value_of(text, "MemAvailable");
  if (!total || !available) return;
  limits.push_back({"MemAvailable", "/proc/meminfo", *total * 1024,
                    (*total - std::min(*total, *available)) * 1024,
                    "free memory on this machine, or start fewer ranks"});
}

void add_address_space(const std::string& root, std::vector<MemoryLimit>& limits) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const uint64_t pages = to_number(read_text(root + "/proc/self/statm")).value_or(0);
  limits.push_back({"RLIMIT_AS", "getrlimit", limit.rlim_cur,
                    pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)), "raise it: ulimit -v unlimited"});
}

std::string in_mib(uint64_t bytes) {
  return bytes < kMiB ? fmt::format("{} bytes", bytes)
                      : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
}

Status refusal(size_t bytes, std::string_view what, const std::string& reason) {
  return Status(ErrorCode::kOutOfMemory, fmt::format("no room for {} ({}): {}", what, in_mib(bytes), reason));
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const std::string& root) {
  std::vector<MemoryLimit> limits;
  const std::string cgroups = read_text(root + "/proc/self/cgroup");
  add_cgroups(root, cgroups, kV1, limits);
  add_cgroups(root, cgroups, kV2, limits);
  add_machine(root, limits);
  add_address_space(root, limits);
  return limits;
}

Status check_headroom(size_t bytes, std::string_view what, const std::string& root) {
  rlimit file_size{};
  if (::getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur != RLIM_INFINITY &&
      bytes > file_size.rlim_cur) {
    return refusal(bytes, what,
                   fmt::format("RLIMIT_FSIZE allows files of {} and shared memory counts as one; "
                               "raise it: ulimit -f unlimited",
                               in_mib(file_size.rlim_cur)));
  }
  for (const MemoryLimit& limit : memory_limits(root)) {
    const uint64_t kept = reserve(limit);
    if (limit.available() >= kept && limit.available() - kept >= bytes) continue;
    return refusal(
        bytes, what,
        fmt::format("{} is {} with {} in use ({}), and {} stay free; {}", limit.name, in_mib(limit.limit),
                    in_mib(limit.used), limit.source, in_mib(kept), limit.advice));
  }
  return Status();
}

}  // namespace collective_ops
