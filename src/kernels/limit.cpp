#include "kernels/limit.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "kernels/reduce.h"

namespace collective_ops {
namespace {

constexpr size_t kSliceAlignment = 64;  // a cache line: no two threads write one
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif
constexpr size_t kHugePage = size_t{2} << 20;
constexpr double kBatchSeconds = 0.002;  // long against the clock's and the start's jitter
constexpr int kBatches = 25;

// One mapping that holds the buffers of all ranks.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (begin_ != MAP_FAILED) munmap(begin_, reserved_);
    if (file_ >= 0) close(file_);
  }

  Status map(size_t size, const LimitOptions& options) {
    size_ = (size + kHugePage - 1) / kHugePage * kHugePage;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (options.memory == LimitMemory::kShared) {
      file_ = memfd_create("collective_ops_limit", MFD_CLOEXEC);
      if (file_ < 0 || ftruncate(file_, static_cast<off_t>(size_)) != 0)
        return failure("create shared memory");
      flags = MAP_SHARED;
    }
    // Aligned, since only whole huge pages can be mapped as such.
    reserved_ = size_ + kHugePage;
    begin_ = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin_ == MAP_FAILED) return failure("map memory");
    const uintptr_t aligned = (reinterpret_cast<uintptr_t>(begin_) + kHugePage - 1) / kHugePage * kHugePage;
    address_ =
        mmap(reinterpret_cast<void*>(aligned), size_, PROT_READ | PROT_WRITE, flags | MAP_FIXED, file_, 0);
    if (address_ == MAP_FAILED) return failure("map memory");
    if (options.huge_pages) {  // advice: its failure is no error
      madvise(address_, size_, MADV_HUGEPAGE);
      // The kernel collapses only areas that were touched.
      for (size_t at = 0; at < size_; at += kHugePage) static_cast<char*>(address_)[at] = 0;
      madvise(address_, size_, MADV_COLLAPSE);
    }
    return {};
  }

  char* data() const { return static_cast<char*>(address_); }

 private:
  Status failure(const char* what) const {
    const ErrorCode code = errno == ENOMEM || errno == ENOSPC ? ErrorCode::kOutOfMemory : ErrorCode::kSystem;
    return {code,
            fmt::format("cannot {} of {} bytes to measure the limit of this machine: {}; use fewer ranks or "
                        "fewer bytes",
                        what, size_, std::strerror(errno))};
  }

  void* begin_ = MAP_FAILED;
  size_t reserved_ = 0;
  void* address_ = MAP_FAILED;
  size_t size_ = 0;
  int file_ = -1;
};

// The part of the buffers that one thread reduces.
struct Slice {
  std::vector<void*> buffers;
  std::vector<const void*> sources;
  size_t count = 0;

  void run(ReduceKernel kernel) const {
    kernel({.destinations = buffers, .sources = sources, .count = count});
  }
};

void fill_with_ones(char* data, size_t bytes, DataType type) {
  // Any value will do that never becomes subnormal, which some processors add slowly. Zeros would not: some
  // caches treat them specially.
  const uint16_t bfloat16_one = 0x3F80;
  const uint16_t float16_one = 0x3C00;
  const float float32_one = 1;
  const double float64_one = 1;
  const void* one = &float32_one;
  if (type == DataType::kBFloat16) one = &bfloat16_one;
  if (type == DataType::kFloat16) one = &float16_one;
  if (type == DataType::kFloat64 || type == DataType::kComplex128) one = &float64_one;
  const size_t width = std::min<size_t>(size_of(type), type == DataType::kComplex64 ? 4 : 8);
  for (size_t at = 0; at + width <= bytes; at += width) std::memcpy(data + at, one, width);
}

std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

// Best effort: an unpinned thread still measures.
void pin_to(const std::vector<int>& processors, size_t thread) {
  if (processors.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processors[thread % processors.size()], &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

std::vector<Slice> cut(char* data, size_t stride, int ranks, size_t bytes, size_t width, int threads) {
  const size_t parts = static_cast<size_t>(threads);
  const size_t share = (bytes / parts + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment;
  std::vector<Slice> slices(parts);
  for (size_t t = 0; t < parts; ++t) {
    const size_t begin = std::min(bytes, t * share);
    const size_t end = t + 1 == parts ? bytes : std::min(bytes, begin + share);
    for (int r = 0; r < ranks; ++r)
      slices[t].buffers.push_back(data + static_cast<size_t>(r) * stride + begin);
    slices[t].sources.assign(slices[t].buffers.begin(), slices[t].buffers.end());
    slices[t].count = (end - begin) / width;
  }
  return slices;
}

double seconds_since(int64_t start) { return static_cast<double>(monotonic_ns() - start) * 1e-9; }

// Seconds of one all-reduce in each batch: within a batch threads run freely, and the slowest one counts.
std::vector<double> time_batches(const std::vector<Slice>& slices, ReduceKernel kernel, double budget) {
  const size_t threads = slices.size();
  const std::vector<int> processors = allowed_processors();
  std::vector<double> elapsed(threads), batches;
  int repetitions = 1;
  bool warm = false, done = false;
  const int64_t start = monotonic_ns();

  const auto after_batch = [&]() noexcept {
    const double slowest = *std::max_element(elapsed.begin(), elapsed.end()) / repetitions;
    if (!warm) {  // the first round warms up and says how many make a batch
      warm = repetitions > 1 || slowest > kBatchSeconds;
      repetitions = std::clamp(static_cast<int>(kBatchSeconds / std::max(slowest, 1e-9)), 1, 1'000'000);
      return;
    }
    batches.push_back(slowest);
    done = batches.size() >= kBatches || (batches.size() >= 3 && seconds_since(start) > budget);
  };
  std::barrier begin(static_cast<std::ptrdiff_t>(threads));
  std::barrier end(static_cast<std::ptrdiff_t>(threads), after_batch);
  const auto run = [&](size_t t) {
    pin_to(processors, t);
    while (!done) {
      begin.arrive_and_wait();
      const int64_t batch_start = monotonic_ns();
      for (int i = 0; i < repetitions; ++i) slices[t].run(kernel);
      elapsed[t] = seconds_since(batch_start);
      end.arrive_and_wait();
    }
  };
  batches.reserve(kBatches);
  std::vector<std::jthread> workers;
  for (size_t t = 0; t < threads; ++t) workers.emplace_back(run, t);
  workers.clear();
  return batches;
}

}  // namespace

Result<LimitTime> measure_inplace_reduce(int ranks, size_t bytes, int threads, const LimitOptions& options) {
  const ReduceKernel kernel = reduce_kernel(options.type, ReduceOp::kSum);
  if (ranks < 1 || threads < 1 || threads > 1024 || bytes < size_of(options.type) || kernel == nullptr ||
      bytes > SIZE_MAX / 4 / static_cast<size_t>(ranks)) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("cannot measure the limit of an all-reduce of {} bytes of {} over {} ranks on {} "
                    "threads; give at least one rank, thread (at most 1024) and element, and a type that "
                    "can be summed",
                    bytes, name_of(options.type), ranks, threads));
  }
  const size_t stride = (bytes + 4095) / 4096 * 4096;
  Mapping mapping;
  const Status mapped = mapping.map(stride * static_cast<size_t>(ranks), options);
  if (!mapped.ok()) return mapped;
  fill_with_ones(mapping.data(), stride * static_cast<size_t>(ranks), options.type);

  const std::vector<Slice> slices = cut(mapping.data(), stride, ranks, bytes, size_of(options.type), threads);
  std::vector<double> batches = time_batches(slices, kernel, options.seconds_budget);
  std::sort(batches.begin(), batches.end());
  return LimitTime{.median = batches[batches.size() / 2], .best = batches.front()};
}

double inplace_reduce_seconds(int ranks, size_t bytes, int threads) {
  const Result<LimitTime> time = measure_inplace_reduce(ranks, bytes, threads);
  return time.ok() ? time.value().median : 0;
}

}  // namespace collective_ops
