// A barrier that names who is missing. It goes over the store, not the communicator: a rank that is late or
// stuck elsewhere is reported, and the group is whole afterwards.
#include <string>
#include <vector>

#include "torch/backend.h"
#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

const std::string kPassed = "passed";
constexpr auto kAnswer = std::chrono::milliseconds(1000);

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

// Stores have different exceptions for a wait that takes too long.
bool comes(c10d::Store& store, const std::string& key, Clock::time_point deadline) {
  try {
    store.wait({key}, until(deadline));
    return true;
  } catch (const std::exception&) {
    if (Clock::now() < deadline) throw;
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
  if (rank_ == 0) {
    lead_monitored_barrier(prefix, timeout, deadline, wait_all_ranks);
    return;
  }
  store_->set(c10::str(prefix, rank_), "here");
  // Rank 0 may use up its whole time before it answers, and may have begun later.
  std::string told = c10::str("no answer in ", (2 * timeout + kAnswer).count(), " ms");
  if (comes(*store_, prefix + "all", deadline + timeout + kAnswer)) told = store_->get_to_str(prefix + "all");
  if (told == kPassed) return;
  raise({ErrorCode::kTimeout, c10::str("Rank ", rank_,
                                       " successfully reached monitoredBarrier, but received errors while "
                                       "waiting for send/recv from rank 0: ",
                                       told)});
}

void ProcessGroupCollectiveOps::lead_monitored_barrier(const std::string& prefix,
                                                       std::chrono::milliseconds timeout,
                                                       std::chrono::steady_clock::time_point deadline,
                                                       bool wait_all_ranks) {
  std::vector<int> missing;
  std::string failure = kPassed;
  for (int rank = 1; rank < size_ && (missing.empty() || wait_all_ranks); ++rank) {
    if (missing.empty() && Clock::now() >= deadline) {
      failure =
          c10::str("Rank 0 timed out in monitoredBarrier after ", timeout.count(), " ms, before rank ", rank);
      break;
    }
    if (!comes(*store_, c10::str(prefix, rank), deadline)) missing.push_back(rank);
  }
  if (!missing.empty()) {
    failure = c10::str(missing.size() == 1 ? "Rank " : "Ranks ", list(missing),
                       " failed to pass monitoredBarrier in ", timeout.count(), " ms");
  }
  store_->set(prefix + "all", failure);
  if (failure != kPassed) raise({ErrorCode::kTimeout, failure});
}

}  // namespace collective_ops::pytorch
