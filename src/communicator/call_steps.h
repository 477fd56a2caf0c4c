// What one rank did in one call, one thing after the other: the steps of its plan with their times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "trace/record.h"

namespace collective_ops {

class CallSteps {
 public:
  void begin(int64_t now, size_t ranks) {
    at_ns_ = now;
    left_out_ = 0;
    list_.clear();
    moved_ns_.assign(ranks, 0);
  }

  // What has been done since the step before. Peers are ranks of the group. Of a step with several, each has
  // an equal share of its time. `waited_ns`: how much of it this rank stood still.
  void note(StepKind kind, std::span<const uint16_t> peers, uint64_t bytes, int64_t waited_ns = 0) {
    const int64_t now = monotonic_ns();
    const int64_t length = now - at_ns_;
    // What was there already was no wait: its time is the next step's.
    if (kind == StepKind::kWait && length < kShortestWaitNs) return;
    if (kind != StepKind::kWait) {
      for (const uint16_t peer : peers)
        moved_ns_[peer] += std::max<int64_t>(length - waited_ns, 0) / static_cast<int64_t>(peers.size());
    }
    if (list_.size() < kMaxSteps) {
      StepRecord& step = list_.emplace_back();
      step.begun_ns = at_ns_;
      step.kind = static_cast<uint64_t>(kind);
      step.peer = peers.size() == 1 ? peers[0] : kNoPeer;
      step.length_ns = std::min<uint64_t>(static_cast<uint64_t>(length), kMaxStepNs);
      step.bytes = bytes;
    } else {
      ++left_out_;
    }
    at_ns_ = now;
  }

  std::vector<StepRecord>& list() { return list_; }
  uint64_t left_out() const { return left_out_; }
  // To and from each peer, or within this rank's own memory.
  const std::vector<int64_t>& moved_ns() const { return moved_ns_; }

 private:
  static constexpr int64_t kShortestWaitNs = 200;

  int64_t at_ns_ = 0;
  uint64_t left_out_ = 0;
  std::vector<StepRecord> list_;
  std::vector<int64_t> moved_ns_;
};

}  // namespace collective_ops
