#include "probe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>

#include <collective_ops/types.h>

#include "kernels/reduce.h"
#include "topo/links.h"

namespace collective_ops::tune {
namespace {

using Clock = std::chrono::steady_clock;

// Larger than first-level caches, where other costs hold, and within the second level's.
constexpr std::array<size_t, 5> kSizes = {size_t{64} << 10, size_t{96} << 10, size_t{128} << 10,
                                          size_t{256} << 10, size_t{512} << 10};
constexpr size_t kMemoryBytes = size_t{16} << 20;  // beyond most second-level caches
constexpr size_t kMemoryThreads = 16;              // some 512 MiB of buffers at most
constexpr int kMemoryRounds = 4;

double nanoseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

Status too_busy() {
  return Status(ErrorCode::kTimeout,
                "two cores could not be measured together in 3 s, since other programs use them; try "
                "again when the machine is quieter");
}

// A collective works on what other cores have just written, so that is what is measured: `read` of each of
// kSizes, which moves `factor` bytes for each byte of them.
Result<Fit> fit_reads(int from, int to, double factor, const std::function<void(const void*, size_t)>& read) {
  std::vector<Point> points;
  for (const size_t size : kSizes) {
    const auto best = topo::measure_transfer(from, to, size, [&](const void* data) { read(data, size); });
    if (!best.ok()) return best.status();
    if (!best.value()) return too_busy();
    points.push_back({factor * static_cast<double>(size), std::max(*best.value(), 1.0)});
  }
  return fit_line(points);
}

Result<Fit> fit_copies(int from, int to) {
  std::vector<std::byte> own(kSizes.back());
  return fit_reads(from, to, 2, [&](const void* data, size_t size) { std::memcpy(own.data(), data, size); });
}

Result<Fit> fit_reductions(int from, int to) {
  const ReduceKernel kernel = reduce_kernel(DataType::kFloat32, ReduceOp::kSum);
  std::vector<float> own(kSizes.back() / sizeof(float), 1.0F), sum(own);
  return fit_reads(from, to, 3, [&](const void* data, size_t size) {
    const std::array<const void*, 2> sources = {own.data(), data};
    const std::array<void*, 1> destinations = {sum.data()};
    kernel({destinations, sources, size / sizeof(float)});
  });
}

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

// A hand-over between two cores, and on one.
Status measure_hand_over(const std::vector<int>& processors, Topology& topology) {
  const auto alone = topo::measure_link(processors.front(), processors.front());
  if (!alone.ok()) return alone.status();
  if (alone.value()) topology.yield_ns = alone.value()->latency_ns;
  if (processors.size() < 2) return {};
  const auto pair = topo::measure_link(processors[0], processors[1]);
  if (!pair.ok()) return pair.status();
  if (!pair.value()) return too_busy();
  topology.signal_ns = pair.value()->latency_ns;
  return {};
}

}  // namespace

Fit fit_line(std::span<const Point> points) {
  // With each point weighted by 1/t^2, errors are relative.
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (const Point& point : points) {
    const double weight = 1.0 / (point.nanoseconds * point.nanoseconds);
    w += weight;
    wx += weight * point.bytes;
    wy += weight * point.nanoseconds;
    wxx += weight * point.bytes * point.bytes;
    wxy += weight * point.bytes * point.nanoseconds;
  }
  const double slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
  Fit fit;
  fit.start_ns = (wy - slope * wx) / w;
  fit.bytes_per_ns = 1.0 / slope;
  for (const Point& point : points) {
    const double predicted = fit.start_ns + point.bytes / fit.bytes_per_ns;
    fit.residual = std::max(fit.residual, std::abs(predicted / point.nanoseconds - 1.0));
  }
  return fit;
}

Result<Probe> probe(const std::vector<int>& processors, uint64_t cache_bytes) {
  if (processors.empty()) return Status(ErrorCode::kInvalidArgument, "a probe of no processor");
  const auto begin = Clock::now();
  Probe result;
  const int cores = static_cast<int>(processors.size());
  result.topology = measured_defaults(cores, cores);
  if (cache_bytes > 0) result.topology.cache_bytes = cache_bytes;
  // One core alone reads what it has written itself.
  const int from = processors[processors.size() > 1 ? 1 : 0], to = processors[0];
  const auto copy = fit_copies(from, to);
  if (!copy.ok()) return copy.status();
  const auto reduce = fit_reductions(from, to);
  if (!reduce.ok()) return reduce.status();
  result.copy = copy.value();
  result.reduce = reduce.value();
  result.topology.copy_bytes_per_ns = result.copy.bytes_per_ns;
  result.topology.reduce_bytes_per_ns = result.reduce.bytes_per_ns;
  result.topology.memory_bytes_per_ns = memory_speed(processors.size());
  if (Status status = measure_hand_over(processors, result.topology); !status.ok()) return status;
  result.seconds = nanoseconds_since(begin) * 1e-9;
  return result;
}

}  // namespace collective_ops::tune
