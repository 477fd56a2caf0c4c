#include "torch/rendezvous.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <vector>

#include <sys/stat.h>

#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

constexpr auto kForEver = std::chrono::milliseconds(std::chrono::hours(24 * 365));
const std::string kJob = "job ";
constexpr auto kAnswerTime = std::chrono::milliseconds(1000);  // rank 0 may use up its time before it tells
constexpr auto kLongestJoin = std::chrono::milliseconds(std::chrono::hours(24));  // that the core allows

// Ranks with different ones cannot share memory, or not find each other.
std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return c10::str(boot, "/", network.st_ino);
}

std::string fresh_job(const std::string& group) {
  std::random_device source;
  return c10::str("c10d-", group, "-", std::hex, source(), source(), source(), source());
}

// The keys of one start of a group. A store may serve several under one name (destroy, and init again): each
// rank counts its own, so that nobody reads what was written for an earlier one.
class Start {
 public:
  Start(const c10::intrusive_ptr<c10d::Store>& store, int rank)
      : number_(store->add(c10::str("collective_ops/starts/", rank), 1)) {}
  std::string host_of(int rank) const { return c10::str("collective_ops/host/", number_, "/", rank); }
  std::string job() const { return c10::str("collective_ops/job/", number_); }

 private:
  int64_t number_;
};

// Waits for all other ranks. "" where they are all on this host, else what is wrong.
std::string look_for_ranks(const c10::intrusive_ptr<c10d::Store>& store, const Start& start, int size,
                           std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < size; ++rank) keys.push_back(start.host_of(rank));
  std::string missing, elsewhere;
  try {
    store->wait(keys, timeout);
  } catch (const std::exception&) {
    for (int rank = 1; rank < size; ++rank) {
      if (!store->check({start.host_of(rank)})) missing += c10::str(missing.empty() ? "" : ", ", rank);
    }
    if (missing.empty()) throw;
    return c10::str("rank ", missing, " did not come in ", timeout.count(), " ms");
  }
  const std::string here = host_identity();
  for (int rank = 1; rank < size; ++rank) {
    if (store->get_to_str(start.host_of(rank)) != here)
      elsewhere += c10::str(elsewhere.empty() ? "" : ", ", rank);
  }
  if (elsewhere.empty()) return "";
  return c10::str(
      "rank ", elsewhere,
      " is on another host than rank 0 (or in another network namespace), and this backend joins the "
      "ranks of one host; use gloo for groups that span hosts");
}

// Rank 0 looks whether all can join, and tells them the job, or why there is none.
std::string agree_on_job(const c10::intrusive_ptr<c10d::Store>& store, const std::string& group, int rank,
                         int size, std::chrono::milliseconds timeout) {
  const Start start(store, rank);
  std::string told;
  if (rank == 0) {
    const std::string problem = look_for_ranks(store, start, size, timeout);
    told = problem.empty() ? kJob + fresh_job(group) : problem;
    store->set(start.job(), told);
  } else {
    store->set(start.host_of(rank), host_identity());
    store->wait({start.job()}, timeout + kAnswerTime);
    told = store->get_to_str(start.job());
  }
  if (told.rfind(kJob, 0) != 0)
    raise({ErrorCode::kRendezvous, c10::str("process group ", group, ", rank ", rank, ": ", told)});
  return told.substr(kJob.size());
}

}  // namespace

std::chrono::milliseconds core_timeout(std::chrono::milliseconds timeout) {
  return timeout >= kForEver || timeout.count() < 0 ? std::chrono::milliseconds(0) : timeout;
}

std::shared_ptr<Communicator> join(const c10::intrusive_ptr<c10d::Store>& store, const std::string& group,
                                   int rank, int size, std::chrono::milliseconds timeout) {
  ConnectOptions options;
  options.rank = rank;
  options.world_size = size;
  options.exec_timeout = core_timeout(timeout);
  options.connect_timeout =
      timeout.count() == 0 ? kLongestJoin : std::clamp(timeout, std::chrono::milliseconds(1), kLongestJoin);
  options.interrupted = look_for_signals;
  options.job_id =
      size == 1 ? fresh_job(group) : agree_on_job(store, group, rank, size, *options.connect_timeout);
  const Interruptible here;
  auto communicator = Communicator::connect(options);
  check(communicator.status());
  return std::shared_ptr<Communicator>(std::move(*communicator));
}

}  // namespace collective_ops::pytorch
