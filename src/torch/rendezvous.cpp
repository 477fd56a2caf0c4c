#include "torch/rendezvous.h"

#include <algorithm>
#include <random>
#include <vector>

#include "bootstrap/secret.h"
#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

constexpr auto kForEver = std::chrono::milliseconds(std::chrono::hours(24 * 365));
const std::string kJob = "job ";                               // on one host, by this name
const std::string kHosts = "hosts ";                           // on several; they meet by the store
constexpr auto kAnswerTime = std::chrono::milliseconds(1000);  // rank 0 may use up its time before it tells
constexpr auto kLongestJoin = std::chrono::milliseconds(std::chrono::hours(24));  // that the core allows

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
  std::string heard_by(int rank) const { return c10::str("collective_ops/heard/", number_, "/", rank); }

 private:
  int64_t number_;
};

// Rank 0 waits for all others, and says by what all join, or why they cannot.
std::string look_for_ranks(const c10::intrusive_ptr<c10d::Store>& store, const Start& start, int size,
                           const std::string& job, std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < size; ++rank) keys.push_back(start.host_of(rank));
  try {
    store->wait(keys, timeout);
  } catch (const std::exception&) {
    std::string missing;
    for (int rank = 1; rank < size; ++rank) {
      if (!store->check({start.host_of(rank)})) missing += c10::str(missing.empty() ? "" : ", ", rank);
    }
    if (missing.empty()) throw;
    return c10::str("rank ", missing, " did not come in ", timeout.count(), " ms");
  }
  const std::string here = host_tag();
  std::string elsewhere;
  for (int rank = 1; rank < size; ++rank) {
    if (store->get_to_str(start.host_of(rank)) != here)
      elsewhere += c10::str(elsewhere.empty() ? "" : ", ", rank);
  }
  if (elsewhere.empty()) return kJob + job;
  const auto secret = find_secret();
  if (!secret.ok()) return secret.status().message();
  if (secret.value().kind != JobSecret::Kind::kThisHost) return kHosts + job;
  return c10::str("rank ", elsewhere,
                  " is on another host than rank 0 (or in another network namespace), and there is no secret "
                  "by which ranks on several hosts could tell each other from strangers. ",
                  kHowToGiveSecret);
}

// c10d's store, for the core: rank 0 says there where it is.
class CoreStore final : public KeyValueStore {
 public:
  CoreStore(const c10::intrusive_ptr<c10d::Store>& store, std::string prefix)
      : store_(store), prefix_(std::move(prefix)) {}
  Status set(const std::string& key, const std::string& value) override {
    try {
      store_->set(prefix_ + key, value);
      return {};
    } catch (const std::exception& error) {
      return {ErrorCode::kRendezvous, c10::str("writing to the store: ", error.what())};
    }
  }
  Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) override {
    try {
      store_->wait({prefix_ + key}, timeout);
      return store_->get_to_str(prefix_ + key);
    } catch (const std::exception& error) {
      return Status(ErrorCode::kTimeout,
                    c10::str("the store has no word of rank 0 yet (", error.what(), ")"));
    }
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
};

// With rank 0's process the store may end, so it stays until those that came have heard why they cannot join.
void wait_for_hearers(const c10::intrusive_ptr<c10d::Store>& store, const Start& start, int size) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < size; ++rank) {
    if (store->check({start.host_of(rank)})) keys.push_back(start.heard_by(rank));
  }
  try {
    if (!keys.empty()) store->wait(keys, kAnswerTime);
  } catch (const std::exception&) {
    // They are gone, or late: what there is to say stands in the store.
  }
}

// How the ranks join, which rank 0 tells them, or why they cannot.
void agree(const c10::intrusive_ptr<c10d::Store>& store, const std::string& group, ConnectOptions& options) {
  const Start start(store, options.rank);
  std::string told;
  if (options.rank == 0) {
    told = look_for_ranks(store, start, options.world_size, fresh_job(group), *options.connect_timeout);
    store->set(start.job(), told);
  } else {
    store->set(start.host_of(options.rank), host_tag());
    store->wait({start.job()}, *options.connect_timeout + kAnswerTime);
    told = store->get_to_str(start.job());
  }
  if (told.starts_with(kJob)) {
    options.job_id = told.substr(kJob.size());
    options.one_host = true;
  } else if (told.starts_with(kHosts)) {
    options.job_id = told.substr(kHosts.size());
    options.store = std::make_shared<CoreStore>(store, start.job() + "/");
  } else {
    if (options.rank == 0) {
      wait_for_hearers(store, start, options.world_size);
    } else {
      store->set(start.heard_by(options.rank), "");
    }
    raise({ErrorCode::kRendezvous, c10::str("process group ", group, ", rank ", options.rank, ": ", told)});
  }
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
  if (size == 1) {
    options.job_id = fresh_job(group);
  } else {
    agree(store, group, options);
  }
  const Interruptible here;
  auto communicator = Communicator::connect(options);
  check(communicator.status());
  return std::shared_ptr<Communicator>(std::move(*communicator));
}

}  // namespace collective_ops::pytorch
