#include "probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "fit.h"
#include "sweep.h"
#include "topo/links.h"

namespace collective_ops::tune {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMemoryBytes = size_t{16} << 20;  // beyond most second-level caches
constexpr size_t kMemoryThreads = 16;              // some 512 MiB of buffers at most
constexpr int kMemoryRounds = 2;
constexpr int kMostRanks = 8;
constexpr int kFitRounds = 8;
// Small, as long as the caches of a core, and in between.
const std::vector<size_t> kSizes = {64, size_t{32} << 10, size_t{1} << 20};

// All cores at once: bytes per nanosecond of all together.
double memory_speed(size_t cores) {
  const size_t count = std::min(cores, kMemoryThreads);
  std::vector<std::vector<std::byte>> from(count), to(count);
  double best = 0;
  for (int round = 0; round <= kMemoryRounds; ++round) {  // the first touches the pages
    std::vector<std::thread> threads;
    std::atomic<size_t> ready{0};
    std::vector<Clock::time_point> begin(count), end(count);
    for (size_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        from[i].resize(kMemoryBytes);
        to[i].resize(kMemoryBytes);
        ++ready;
        while (ready < count) std::this_thread::yield();
        begin[i] = Clock::now();
        std::memcpy(to[i].data(), from[i].data(), kMemoryBytes);
        end[i] = Clock::now();
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto took =
        *std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end());
    const double nanoseconds = std::chrono::duration<double, std::nano>(took).count();
    if (round > 0) best = std::max(best, 2.0 * static_cast<double>(kMemoryBytes * count) / nanoseconds);
  }
  return best;
}

// A bare hand-over on the machine of the defaults, between two cores and on one. A rank's takes longer, for
// what it does around it; the fit begins with the same proportion here.
constexpr double kBareSignalNs = 150;
constexpr double kBareYieldNs = 785;

Status measure_hand_over(const std::vector<int>& processors, Topology& topology) {
  const auto alone = topo::measure_link(processors.front(), processors.front());
  if (!alone.ok()) return alone.status();
  if (alone.value()) topology.yield_ns *= alone.value()->latency_ns / kBareYieldNs;
  if (processors.size() < 2) return {};
  const auto pair = topo::measure_link(processors[0], processors[1]);
  if (!pair.ok()) return pair.status();
  if (!pair.value()) {
    return Status(ErrorCode::kTimeout,
                  "two cores could not be measured together in 3 s, since other programs use them; try "
                  "again when the machine is quieter");
  }
  topology.signal_ns *= pair.value()->latency_ns / kBareSignalNs;
  return {};
}

// Real calls: with a core for each rank, and with two ranks to a core.
Result<std::vector<Observation>> observe(int cores) {
  std::vector<Observation> all;
  const int few = std::min(std::max(2, cores), kMostRanks / 2);
  for (const int ranks : {few, 2 * few}) {
    for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather}) {
      const SweepSpec spec{
          .collective = collective, .ranks = ranks, .sizes = kSizes, .rounds = 2, .batch_ms = 0.3};
      auto points = sweep(spec);
      if (!points.ok()) return points.status();
      for (const SweepPoint& one : *points) {
        // Of a plan on both memories, once.
        if (one.algorithm == "auto" || one.shared != (one.path == "direct")) continue;
        all.push_back({collective, spec.type, ranks, one.bytes, one.algorithm, one.path,
                       *std::ranges::min_element(one.us)});
      }
    }
  }
  return all;
}

}  // namespace

Result<Probe> probe(const std::vector<int>& processors, uint64_t cache_bytes, uint64_t shared_cache_bytes) {
  if (processors.empty()) return Status(ErrorCode::kInvalidArgument, "a probe of no processor");
  const auto begin = Clock::now();
  const int cores = static_cast<int>(processors.size());
  auto calls = observe(cores);
  if (!calls.ok()) return calls.status();
  Topology start = measured_defaults(cores, cores);
  if (cache_bytes > 0) start.cache_bytes = cache_bytes;
  // A virtual machine is told the whole of what it shares with others.
  if (shared_cache_bytes > 0)
    start.shared_cache_bytes = std::min(shared_cache_bytes, start.shared_cache_bytes);
  start.memory_bytes_per_ns = memory_speed(processors.size());
  if (Status status = measure_hand_over(processors, start); !status.ok()) return status;
  auto fitted = fit(*calls, start, kFitRounds);
  if (!fitted.ok()) return fitted.status();
  Probe result{.topology = fitted->topology, .calls = calls->size(), .median_error = fitted->median_error};
  for (size_t i = 0; i < calls->size(); ++i) {
    result.worst_error = std::max(result.worst_error, std::abs(fitted->predicted_us[i] / (*calls)[i].us - 1));
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return result;
}

}  // namespace collective_ops::tune
