#include "links.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include <fmt/format.h>

namespace collective_ops::topo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBatches = 4;
constexpr int kTrips = 200;
constexpr uint32_t kTransfers = 10;
constexpr auto kDeadline = std::chrono::seconds(3);
// Two threads of one processor take turns by the scheduler, which takes long where other programs want it
// too: as many trips as there is time for, each of them a batch.
constexpr int kTripsOnOne = 500;
constexpr auto kDeadlineOnOne = std::chrono::milliseconds(200);
// About a time slice, before a thread gives its processor to others: both have to run at once, and on a busy
// machine they seldom would if each left at once.
constexpr auto kPatience = std::chrono::milliseconds(2);
constexpr int kSpins = 1000;

struct alignas(64) Flag {
  std::atomic<uint32_t> value{0};
};

struct Meeting {
  bool same_processor = false;
  Clock::time_point deadline;
  Flag turn[2];
  std::atomic<int> refused{0};  // errno of whoever could not be bound
  std::vector<std::byte> buffers[2];
  double latency_ns = std::numeric_limits<double>::infinity();
  double gbs[2] = {0, 0};  // that the first, and the second, reads at

  bool await(int side, uint32_t value) {
    const auto patience = same_processor ? Clock::duration() : Clock::duration(kPatience);
    auto leaving =
        Clock::time_point();  // set once a wait is long: reading the clock takes as long as a hand-over
    while (true) {
      for (int spin = 0; spin < kSpins; ++spin) {
        if (turn[side].value.load(std::memory_order_acquire) >= value) return true;  // it may be ahead
      }
      const auto now = Clock::now();
      if (refused.load() != 0 || now > deadline) return false;
      if (leaving == Clock::time_point()) leaving = now + patience;
      if (now < leaving) continue;
      sched_yield();
      leaving = Clock::now() + patience;
    }
  }
  void give(int side, uint32_t value) { turn[side].value.store(value, std::memory_order_release); }
};

bool bind(Meeting& meeting, int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(processor), &set);
  const int error = pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  if (error != 0) meeting.refused = error;
  return error == 0;
}

double nanoseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

// Both sides do the same steps; `clock` counts them.
bool trips(Meeting& meeting, int side, uint32_t& clock, int count) {
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) {
    ++clock;
    if (side == 0) meeting.give(0, clock);
    if (!meeting.await(1 - side, clock)) return false;
    if (side == 1) meeting.give(1, clock);
  }
  if (side == 0) meeting.latency_ns = std::min(meeting.latency_ns, nanoseconds_since(begin) / count / 2);
  return true;
}

bool stream(Meeting& meeting, int side, int writer, uint32_t& clock) {
  std::vector<std::byte>& shared = meeting.buffers[writer];
  std::vector<std::byte> own(kLinkBytes);
  for (int batch = 0; batch < kBatches; ++batch) {
    ++clock;
    if (side == writer) {
      shared.resize(kLinkBytes);
      std::memset(shared.data(), batch + 1, kLinkBytes);
      meeting.give(side, clock);
      if (!meeting.await(1 - side, clock)) return false;
      continue;
    }
    if (!meeting.await(writer, clock)) return false;
    const auto begin = Clock::now();
    std::memcpy(own.data(), shared.data(), kLinkBytes);
    const double speed = kLinkBytes / nanoseconds_since(begin);
    // What was read decides, so that no compiler leaves the copy out.
    if (own[kLinkBytes / 2] == std::byte(batch + 1)) meeting.gbs[side] = std::max(meeting.gbs[side], speed);
    meeting.give(side, clock);
  }
  return true;
}

bool take_part(Meeting& meeting, int side, int processor) {
  uint32_t clock = 0;
  if (!bind(meeting, processor)) return false;
  for (int batch = 0; batch < kBatches; ++batch) {
    if (!trips(meeting, side, clock, kTrips)) return false;
  }
  return stream(meeting, side, 0, clock) && stream(meeting, side, 1, clock);
}

bool take_turns(Meeting& meeting, int side, int processor) {
  uint32_t clock = 0;
  if (!bind(meeting, processor)) return false;
  for (int trip = 0; trip < kTripsOnOne && trips(meeting, side, clock, 1); ++trip) {
  }
  return true;
}

// What a processor reads of its own, after it has written it.
double own_bandwidth() {
  std::vector<std::byte> written(kLinkBytes), own(kLinkBytes);
  double best = 0;
  for (int batch = 0; batch < kBatches; ++batch) {
    std::memset(written.data(), batch + 1, kLinkBytes);
    const auto begin = Clock::now();
    std::memcpy(own.data(), written.data(), kLinkBytes);
    const double speed = kLinkBytes / nanoseconds_since(begin);
    if (own[kLinkBytes / 2] == std::byte(batch + 1)) best = std::max(best, speed);
  }
  return best;
}

Status refusal(int error, int first, int second) {
  return Status(ErrorCode::kSystem, fmt::format("a thread cannot be bound to processor {} or {}: {}", first,
                                                second, std::strerror(error)));
}

}  // namespace

Result<std::optional<Link>> measure_link(int first, int second) {
  Meeting meeting;
  meeting.same_processor = first == second;
  meeting.deadline = Clock::now() + (meeting.same_processor ? Clock::duration(kDeadlineOnOne) : kDeadline);
  const auto body = meeting.same_processor ? take_turns : take_part;
  bool done[2] = {false, false};
  std::thread other([&] { done[1] = body(meeting, 1, second); });
  std::thread one([&] {
    done[0] = body(meeting, 0, first);
    if (meeting.same_processor && done[0]) meeting.gbs[0] = meeting.gbs[1] = own_bandwidth();
  });
  one.join();
  other.join();
  if (const int error = meeting.refused; error != 0) return refusal(error, first, second);
  if (!done[0] || !done[1] || !std::isfinite(meeting.latency_ns)) return std::optional<Link>();
  return std::optional(Link{meeting.latency_ns, meeting.gbs[1], meeting.gbs[0]});
}

Result<std::optional<double>> measure_transfer(int from, int to, size_t bytes,
                                               const std::function<void(const void*)>& read) {
  Meeting meeting;
  meeting.same_processor = from == to;
  meeting.deadline = Clock::now() + kDeadline;
  std::vector<std::byte> shared(bytes);
  double best = std::numeric_limits<double>::infinity();
  bool done[2] = {false, false};
  std::thread writer([&] {
    if (!bind(meeting, from)) return;
    for (uint32_t batch = 1; batch <= kTransfers; ++batch) {
      std::memset(shared.data(), static_cast<int>(batch), bytes);
      meeting.give(0, batch);
      if (!meeting.await(1, batch)) return;
    }
    done[0] = true;
  });
  std::thread reader([&] {
    if (!bind(meeting, to)) return;
    for (uint32_t batch = 1; batch <= kTransfers; ++batch) {
      if (!meeting.await(0, batch)) return;
      const auto begin = Clock::now();
      read(shared.data());
      best = std::min(best, nanoseconds_since(begin));
      meeting.give(1, batch);
    }
    done[1] = true;
  });
  writer.join();
  reader.join();
  if (const int error = meeting.refused; error != 0) return refusal(error, from, to);
  if (!done[0] || !done[1]) return std::optional<double>();
  return std::optional(best);
}

}  // namespace collective_ops::topo
