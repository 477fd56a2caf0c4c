#include "torch/rendezvous.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "bootstrap/secret.h"
#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr auto kForEver = milliseconds(std::chrono::hours(24 * 365));
constexpr auto kAnswerTime = milliseconds(1000);  // rank 0 may use up its time before it tells
constexpr auto kLongestJoin = milliseconds(std::chrono::hours(24));  // that the core allows
constexpr auto kFirstNap = std::chrono::microseconds(100);           // between two looks into the store
constexpr auto kLongestNap = milliseconds(50);
constexpr auto kLastBreath = milliseconds(100);  // a process's connections close before it counts as ended
constexpr size_t kLongestName = 100;             // the core allows 127
const std::string kMeanwhile = " while the group was being made";

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
  int64_t number() const { return number_; }
  std::string rank(int rank) const { return c10::str("collective_ops/rank/", number_, "/", rank); }
  std::string answer() const { return c10::str("collective_ops/job/", number_); }
  std::string heard_by(int rank) const { return c10::str("collective_ops/heard/", number_, "/", rank); }

 private:
  int64_t number_;
};

// What rank 0 tells.
enum class Way : char {
  kParent = 'p',   // all are in the same group already, which makes this one by this name
  kOneHost = 'h',  // by this job
  kHosts = 's',    // by this job; they find rank 0 in the store
  kNone = 'n',     // they cannot join, for this reason
};
struct Answer {
  Way way = Way::kNone;
  std::string text;
  std::vector<ProcessPlace> processes;

  std::string written() const {
    std::string all = c10::str(static_cast<char>(way), text);
    for (const ProcessPlace& process : processes) all += c10::str("\n", process.text());
    return all;
  }
  static Answer read(const std::string& all) {
    Answer answer;
    std::istringstream lines(all);
    std::getline(lines, answer.text);
    if (!answer.text.empty()) {
      answer.way = static_cast<Way>(answer.text[0]);
      answer.text.erase(0, 1);
    }
    for (std::string line; std::getline(lines, line);) answer.processes.push_back(ProcessPlace::parse(line));
    if (answer.way == Way::kNone && !all.empty()) answer.text = all.substr(1);  // lines and all
    return answer;
  }
};

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
  Result<std::string> get(const std::string& key, milliseconds timeout) override {
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

// One rank's way into a group.
class Joining {
 public:
  Joining(const c10::intrusive_ptr<c10d::Store>& store, const NewGroup& group)
      // Groups that form at the same time and have one name, the halves of a split say, keep apart by their
      // first rank.
      : store_(c10::make_intrusive<c10d::PrefixStore>(c10::str(group.global_ranks.front()), store)),
        group_(group),
        parent_(find_parent(group.global_ranks, group.rank)) {
    patience_ =
        group.timeout.count() == 0 ? kLongestJoin : std::clamp(group.timeout, milliseconds(1), kLongestJoin);
    known_.resize(static_cast<size_t>(group.size()));
    for (int rank = 0; parent_ && rank < group.size(); ++rank)
      know(rank, parent_->roster.processes[static_cast<size_t>(rank)]);
  }

  std::shared_ptr<Membership> run() {
    if (group_.size() == 1) {
      ConnectOptions options = this->options();
      options.job_id = fresh_job(group_.name);
      return connect(options, false, {ProcessPlace::here()});
    }
    const auto [answer, prefix] = meet();
    if (answer.way == Way::kParent) return create(answer);
    ConnectOptions options = this->options();
    options.job_id = answer.text;
    options.one_host = answer.way == Way::kOneHost;
    if (!options.one_host) options.store = std::make_shared<CoreStore>(store_, prefix);
    return connect(options, !options.one_host, answer.processes);
  }

 private:
  int global(int rank) const { return static_cast<int>(group_.global_ranks[static_cast<size_t>(rank)]); }
  [[noreturn]] void fail(ErrorCode code, const std::string& why) const {
    raise({code, c10::str("process group ", group_.name, ", rank ", global(group_.rank), ": ", why)});
  }

  void know(int rank, const ProcessPlace& place) {
    if (std::exchange(known_[static_cast<size_t>(rank)], char{1}) != 0) return;
    watch_->processes.add(global(rank), place);
  }
  // Who has come is watched, the others cannot be; their lines in the store say where they are.
  void look_at(const Start& start, const std::vector<int>& ranks) {
    check(look_for_signals());
    for (const int rank : ranks) {
      if (known_[static_cast<size_t>(rank)] == 0 && store_->check({start.rank(rank)}))
        know(rank, ProcessPlace::parse(store_->get_to_str(start.rank(rank))));
    }
    if (const std::string lost = watch_->processes.lost(); !lost.empty()) throw Lost{lost + kMeanwhile};
  }
  struct Lost {
    std::string text;
  };

  // False where they did not come in time. `ranks`: those who are watched meanwhile.
  bool await(const std::vector<std::string>& keys, const Start& start, const std::vector<int>& ranks,
             Clock::time_point deadline) {
    const auto begun = Clock::now();
    for (;;) {
      if (store_->check(keys)) return true;
      look_at(start, ranks);
      const auto now = Clock::now();
      if (now >= deadline) return false;
      // Not by the store's own wait: that of a TCP store cannot be left early without a warning on stderr.
      const Clock::duration nap = std::clamp<Clock::duration>((now - begun) / 8, kFirstNap, kLongestNap);
      std::this_thread::sleep_until(std::min(now + nap, deadline));
    }
  }
  // Why the store does not answer: a process that has ended may have served it.
  std::string reason_for(const c10::DistNetworkError& error) const {
    const auto until = Clock::now() + kLastBreath;
    do {
      if (const std::string lost = watch_->processes.lost(); !lost.empty()) return lost + kMeanwhile;
      std::this_thread::sleep_for(kLastBreath / 20);
    } while (Clock::now() < until);
    return c10::str(
        "the store by which the ranks meet failed: the process that serves it, rank 0's or the "
        "launcher's, has ended (",
        error.what_without_backtrace(), ")");
  }

  // Raises where the ranks cannot join. Also what keys that belong to this start begin with.
  std::pair<Answer, std::string> meet() {
    try {
      const Start start(store_, group_.rank);
      return {agree(start), start.answer() + "/"};
    } catch (const Lost& lost) {
      fail(ErrorCode::kPeerLost, lost.text);
    } catch (const c10::DistNetworkError& error) {
      fail(ErrorCode::kPeerLost, reason_for(error));
    }
  }

  Answer agree(const Start& start) {
    store_->set(start.rank(group_.rank),
                c10::str(ProcessPlace::here().text(), "\n", parent_ ? parent_->roster.job : ""));
    const auto deadline = Clock::now() + patience_;
    Answer answer;
    try {
      if (group_.rank == 0) {
        answer = decide(start, deadline);
        store_->set(start.answer(), answer.written());
      } else if (await({start.answer()}, start, {0}, deadline + kAnswerTime)) {
        answer = Answer::read(store_->get_to_str(start.answer()));
      } else {
        answer.text = c10::str("rank ", global(0), " did not come in ", patience_.count(), " ms");
      }
    } catch (const Lost& lost) {
      if (group_.rank == 0) store_->set(start.answer(), Answer{Way::kNone, lost.text, {}}.written());
      throw;
    }
    if (answer.way != Way::kNone) return answer;
    if (group_.rank == 0) {
      wait_for_hearers(start);
    } else {
      store_->set(start.heard_by(group_.rank), "");
    }
    fail(ErrorCode::kRendezvous, answer.text);
  }

  // Rank 0 waits for all others.
  Answer decide(const Start& start, Clock::time_point deadline) {
    std::vector<std::string> keys;
    std::vector<int> others;
    for (int rank = 1; rank < group_.size(); ++rank) {
      others.push_back(rank);
      keys.push_back(start.rank(rank));
    }
    if (!await(keys, start, others, deadline)) {
      std::string missing;
      for (const int rank : others) {
        if (!store_->check({start.rank(rank)}))
          missing += c10::str(missing.empty() ? "" : ", ", global(rank));
      }
      return {Way::kNone, c10::str("rank ", missing, " did not come in ", patience_.count(), " ms"), {}};
    }
    Answer answer{Way::kOneHost, fresh_job(group_.name), {ProcessPlace::here()}};
    bool one_parent = parent_.has_value();
    std::string elsewhere;
    for (const int rank : others) {
      const std::string line = store_->get_to_str(start.rank(rank));
      const ProcessPlace place = ProcessPlace::parse(line);
      one_parent = one_parent && line.substr(line.find('\n') + 1) == parent_->roster.job;
      if (place.host != answer.processes[0].host)
        elsewhere += c10::str(elsewhere.empty() ? "" : ", ", global(rank));
      answer.processes.push_back(place);
    }
    if (one_parent) {
      answer.way = Way::kParent;
      answer.text = group_.name.substr(0, kLongestName);
      // A name is used again where a start failed or the group was destroyed.
      if (start.number() > 1) answer.text += c10::str("#", start.number());
    } else if (!elsewhere.empty()) {
      check_secret(elsewhere, answer);
    }
    return answer;
  }

  static void check_secret(const std::string& elsewhere, Answer& answer) {
    const auto secret = find_secret();
    if (secret.ok() && secret.value().kind != JobSecret::Kind::kThisHost) {
      answer.way = Way::kHosts;
      return;
    }
    answer = {Way::kNone,
              !secret.ok()
                  ? secret.status().message()
                  : c10::str("rank ", elsewhere,
                             " is on another host than rank 0 (or in another network namespace), and there "
                             "is no secret by which ranks on several hosts could tell each other from "
                             "strangers. ",
                             kHowToGiveSecret),
              {}};
  }

  // With rank 0's process the store may end, so it stays until those that came have heard why they cannot
  // join.
  void wait_for_hearers(const Start& start) {
    std::vector<std::string> keys;
    for (int rank = 1; rank < group_.size(); ++rank) {
      if (store_->check({start.rank(rank)})) keys.push_back(start.heard_by(rank));
    }
    try {
      if (!keys.empty()) store_->wait(keys, kAnswerTime);
    } catch (const std::exception&) {
      // They are gone, or late: what there is to say stands in the store.
    }
  }

  ConnectOptions options() const {
    ConnectOptions options;
    options.rank = group_.rank;
    options.world_size = group_.size();
    options.exec_timeout = core_timeout(group_.timeout);
    options.connect_timeout = patience_;
    // Later waits, inside calls, know the processes by the core's own means.
    options.interrupted = [watch = watch_] {
      if (watch->on.load()) {
        if (const std::string lost = watch->processes.lost(); !lost.empty())
          return Status(ErrorCode::kPeerLost, lost + kMeanwhile);
      }
      return look_for_signals();
    };
    return options;
  }

  std::shared_ptr<Membership> connect(const ConnectOptions& options, bool several_hosts,
                                      std::vector<ProcessPlace> processes) {
    for (int rank = 0; rank < group_.size(); ++rank) know(rank, processes[static_cast<size_t>(rank)]);
    auto communicator = Communicator::connect(options);
    watch_->on = false;
    watch_->processes = ProcessWatch();
    check(communicator.status());
    return remember(std::move(*communicator),
                    {options.job_id, several_hosts, group_.global_ranks, std::move(processes)});
  }

  std::shared_ptr<Membership> create(const Answer& answer) {
    GroupOptions options;
    options.name = answer.text;
    options.connect_timeout = patience_;
    options.exec_timeout = core_timeout(group_.timeout);
    auto communicator = parent_->communicator->create_group(parent_->ranks, options);
    check(communicator.status());
    Roster roster = std::move(parent_->roster);
    roster.job += "/" + answer.text;
    return remember(std::move(*communicator), std::move(roster));
  }

  struct Watch {
    std::atomic<bool> on{true};
    ProcessWatch processes;
  };

  const c10::intrusive_ptr<c10d::Store> store_;
  const NewGroup& group_;
  std::optional<Parent> parent_;
  milliseconds patience_;
  std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  std::vector<char> known_;  // by rank: whether its process is watched, or cannot be
};

}  // namespace

milliseconds core_timeout(milliseconds timeout) {
  return timeout >= kForEver || timeout.count() < 0 ? milliseconds(0) : timeout;
}

std::shared_ptr<Membership> join(const c10::intrusive_ptr<c10d::Store>& store, const NewGroup& group) {
  const Interruptible here;
  return Joining(store, group).run();
}

}  // namespace collective_ops::pytorch
