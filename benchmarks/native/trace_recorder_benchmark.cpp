// What recording one call costs, by number of peers: processor time with all page faults and growth of
// the file, in the working directory. For scale: two readings of the clock, which every record needs too.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "trace/recorder.h"

namespace collective_ops {
namespace {

constexpr int kRounds = 5;
constexpr uint64_t kBytesPerRound = uint64_t{64} << 20;

int64_t cpu_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Nanoseconds per call of one round, or a negative number where the file cannot be opened.
double record_round(int peers) {
  auto recorder = Recorder::open(".", {.job_id = "trace_recorder_benchmark", .rank = 0, .world_size = 64});
  if (!recorder.ok()) {
    fmt::print(stderr, "{}\n", recorder.status().message());
    return -1;
  }
  std::vector<PeerRecord> trail(peers);
  for (int i = 0; i < peers; ++i) trail[i].peer = i + 1;
  CallRecord call;
  const uint64_t calls = kBytesPerRound / (sizeof(call) + trail.size() * sizeof(PeerRecord));
  const int64_t begun = cpu_ns();
  for (uint64_t i = 0; i < calls; ++i) {
    call.sequence = i;
    (*recorder)->record(call, trail);
  }
  const double spent = static_cast<double>(cpu_ns() - begun) / static_cast<double>(calls);
  std::error_code ignored;
  std::filesystem::remove((*recorder)->path(), ignored);
  return spent;
}

double clock_pair() {
  constexpr int kReadings = 200'000;
  int64_t sum = 0;
  const int64_t begun = cpu_ns();
  for (int i = 0; i < kReadings; ++i) sum += monotonic_ns();
  const double spent = static_cast<double>(cpu_ns() - begun) / kReadings;
  return sum == 0 ? 0 : 2 * spent;
}

int run() {
  fmt::print("{:>6} {:>12} {:>12} {:>12}\n", "peers", "bytes/call", "median ns", "least ns");
  for (const int peers : {0, 1, 7, 63}) {
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) rounds.push_back(record_round(peers));
    std::sort(rounds.begin(), rounds.end());
    if (rounds.front() < 0) return 1;
    fmt::print("{:>6} {:>12} {:>12.1f} {:>12.1f}\n", peers, sizeof(CallRecord) + peers * sizeof(PeerRecord),
               rounds[kRounds / 2], rounds.front());
  }
  fmt::print("two readings of the clock: {:.1f} ns\n", clock_pair());
  return 0;
}

}  // namespace
}  // namespace collective_ops

int main() { return collective_ops::run(); }
