#include "torch/rendezvous.h"

#include <algorithm>
#include <fstream>
#include <random>

#include <sys/stat.h>

#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

constexpr auto kForEver = std::chrono::milliseconds(std::chrono::hours(24 * 365));
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

// What rank 0 writes for this start of the group. A store may serve several starts under one name (destroy,
// and init again): each rank counts its own, so that nobody reads what was written for an earlier one.
std::string agree_on_job(const c10::intrusive_ptr<c10d::Store>& store, const std::string& group, int rank,
                         std::chrono::milliseconds timeout) {
  const int64_t start = store->add(c10::str("collective_ops/starts/", rank), 1);
  const std::string key = c10::str("collective_ops/job/", start);
  const std::string here = host_identity();
  if (rank == 0) {
    const std::string job = fresh_job(group);
    store->set(key, here + " " + job);
    return job;
  }
  store->wait({key}, timeout.count() == 0 ? kLongestJoin : std::min(timeout, kLongestJoin));
  const std::string told = store->get_to_str(key);
  const size_t space = told.find(' ');
  if (space == std::string::npos || told.substr(0, space) != here) {
    raise({ErrorCode::kRendezvous,
           c10::str("process group ", group, ": rank ", rank,
                    " is on another host than rank 0 (or in another network namespace), and this backend "
                    "joins the ranks of one host; use gloo for groups that span hosts")});
  }
  return told.substr(space + 1);
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
  options.job_id = size == 1 ? fresh_job(group) : agree_on_job(store, group, rank, timeout);
  const Interruptible here;
  auto communicator = Communicator::connect(options);
  check(communicator.status());
  return std::shared_ptr<Communicator>(std::move(*communicator));
}

}  // namespace collective_ops::pytorch
