#include "communicator/trace_at_end.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ctime>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/process.h"
#include "memory/descriptor.h"
#include "trace/merge.h"

namespace collective_ops {
namespace {

constexpr int64_t kLockNs = 10'000'000'000;  // another merge may take that long; then both go on
constexpr long kNapNs = 5'000'000;
constexpr int64_t kSecondNs = 1'000'000'000;

int64_t nanoseconds(const timespec& time) { return time.tv_sec * kSecondNs + time.tv_nsec; }

// Real time; a tick late rather than early.
int64_t program_began_ns() {
  timespec since_boot{};
  ::clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const auto self = read_process(::getpid());
  const int64_t ticks = self ? self->start_time + 1 : 0;
  return real_ns() - nanoseconds(since_boot) + ticks * (kSecondNs / ::sysconf(_SC_CLK_TCK));
}

bool written_since(const std::filesystem::path& path, int64_t real_ns) {
  struct stat file {};
  return ::stat(path.c_str(), &file) == 0 && nanoseconds(file.st_mtim) >= real_ns;
}

std::filesystem::path free_name(const std::filesystem::path& directory, const std::string& name) {
  const int64_t began = program_began_ns();
  std::filesystem::path path = directory / (name + ".json");
  for (int number = 2; written_since(path, began); ++number)
    path = directory / fmt::format("{}.{}.json", name, number);
  return path;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "host";
}

// Jobs that end at the same time in one directory do so one behind the other.
Descriptor lock(const std::filesystem::path& directory) {
  Descriptor descriptor(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int64_t until = monotonic_ns() + kLockNs;
  while (::flock(descriptor.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
         monotonic_ns() < until) {
    const timespec nap{0, kNapNs};
    ::nanosleep(&nap, nullptr);
  }
  return descriptor;
}

}  // namespace

void merge_trace_at_end(const std::string& job, const std::filesystem::path& directory, bool several_hosts) {
  const Descriptor alone = lock(directory);
  MergeOptions options{.output = free_name(directory, "comm_trace"), .job = job};
  if (several_hosts) options.output_of_some = free_name(directory, "comm_trace." + host_name());
  const auto merged = merge_traces({{directory}}, options);
  if (!merged.ok()) {
    // Another host was here meanwhile, and took the files away.
    if (several_hosts && merged.status().code() == ErrorCode::kInvalidArgument) return;
    fmt::print(stderr, "collective-ops: the trace was not merged: {}\n", merged.status().message());
  } else if (merged->left_to_others) {
    return;
  } else if (several_hosts && merged->output == options.output_of_some) {
    fmt::print(stderr,
               "collective-ops: {} has the ranks of this host. For one trace of all, bring the hosts' "
               "comm_trace.*.bin into one directory, and run there: collective-ops trace merge .\n",
               merged->output);
  } else if (!merged->complete()) {
    fmt::print(stderr, "collective-ops: {}\n", merged->text());
  } else if (options.output.filename() != "comm_trace.json") {
    fmt::print(stderr, "collective-ops: the trace is in {}; comm_trace.json is of a job that ended before\n",
               options.output.string());
  }
}

}  // namespace collective_ops
