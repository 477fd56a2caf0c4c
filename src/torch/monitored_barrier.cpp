// A barrier that names who is missing. It goes over the store, not the communicator: a rank that is late or
// stuck elsewhere is reported, and the group is whole afterwards.
#include <string>
#include <vector>

#include "torch/backend.h"
#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

const std::string kPassed = "passed";

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

bool comes(c10d::Store& store, const std::string& key, std::chrono::milliseconds timeout) {
  try {
    store.wait({key}, timeout);
    return true;
  } catch (const c10::DistStoreError&) {
    return false;
  }
}

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

void ProcessGroupCollectiveOps::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const auto timeout = options.timeout.count() < 0 ? options_->timeout : options.timeout;
  const auto deadline = Clock::now() + timeout;
  const std::string prefix = c10::str("collective_ops/monitored_barrier/", ++monitored_barriers_, "/");
  if (rank_ != 0) {
    store_->set(c10::str(prefix, rank_), "here");
    if (comes(*store_, prefix + "all", until(deadline))) {
      const std::string told = store_->get_to_str(prefix + "all");
      if (told == kPassed) return;
      raise({ErrorCode::kTimeout,
             c10::str("Rank ", rank_, " came to monitoredBarrier, but rank 0 reports: ", told)});
    }
    raise({ErrorCode::kTimeout, c10::str("Rank ", rank_, " timed out in monitoredBarrier after ",
                                         timeout.count(), " ms: rank 0 did not come, or waits for others")});
  }
  std::vector<int> missing;
  for (int rank = 1; rank < size_ && (missing.empty() || wait_all_ranks); ++rank) {
    if (!comes(*store_, c10::str(prefix, rank), until(deadline))) missing.push_back(rank);
  }
  std::string failure = kPassed;
  if (!missing.empty()) {
    failure = c10::str(missing.size() == 1 ? "Rank " : "Ranks ", list(missing),
                       " failed to pass monitoredBarrier in ", timeout.count(), " ms");
  }
  store_->set(prefix + "all", failure);
  if (failure != kPassed) raise({ErrorCode::kTimeout, failure});
}

}  // namespace collective_ops::pytorch
