#include "sweep.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <collective_ops/communicator.h>

#include "explain.h"
#include "perf/rank_case.h"
#include "plan/program.h"

namespace collective_ops::tune {
namespace {

using Clock = std::chrono::steady_clock;
using perf::RankCase;

constexpr double kFarBehind = 5;  // times the best of the first round
constexpr int kMostCalls = 5000;
constexpr int kFirstCalls = 4;
constexpr size_t kSmallCall = size_t{1} << 20;  // such calls have slots, whose pages have to be there

// What a communicator was made to take: COLLECTIVE_OPS_ALGORITHM and COLLECTIVE_OPS_PATH.
using Setting = std::pair<std::string, std::string>;

struct Contender {
  SweepPoint point;
  Setting setting;
};

Setting setting_of(const Candidate& one) {
  const bool by_path = one.path == "read" && one.name != "read";
  return by_path ? Setting{"auto", "read"} : Setting{one.name, "auto"};
}

Result<std::vector<Contender>> contenders_of(const SweepSpec& spec, size_t bytes) {
  std::vector<Contender> all;
  for (const bool shared : {true, false}) {
    all.push_back({{bytes, shared, "auto", "", false, true, {}}, {"auto", "auto"}});
    const auto explained =
        explain({spec.collective, spec.type, bytes, shared}, measured_defaults(spec.ranks, spec.ranks));
    if (!explained.ok()) return explained.status();
    for (const auto& [one, chosen] : explained.value()) {
      all.push_back({{bytes, shared, one.name, one.path, chosen, one.ordered, {}}, setting_of(one)});
    }
  }
  return all;
}

class Rank {
 public:
  Rank(const SweepSpec& spec, int rank, std::string job) : spec_(spec), rank_(rank), job_(std::move(job)) {
    choose_core();
  }
  ~Rank() { bind(&all_cores_); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  Result<std::vector<SweepPoint>> run() {
    std::vector<SweepPoint> points;
    for (const size_t bytes : spec_.sizes) {
      auto contenders = contenders_of(spec_, bytes);
      if (!contenders.ok()) return contenders.status();
      if (Status status = measure(*contenders, bytes); !status.ok()) return status;
      for (Contender& one : *contenders) points.push_back(std::move(one.point));
    }
    return points;
  }

 private:
  // All ranks make the same ones in the same order.
  Result<Communicator*> communicator(const Setting& setting) {
    auto& found = communicators_[setting];
    if (found != nullptr) return found.get();
    bind(&all_cores_);  // a communicator asks how many cores there are
    setenv("COLLECTIVE_OPS_ALGORITHM", setting.first.c_str(), 1);
    setenv("COLLECTIVE_OPS_PATH", setting.second.c_str(), 1);
    auto made =
        Communicator::connect({.rank = rank_,
                               .world_size = spec_.ranks,
                               .job_id = fmt::format("{}.{}.{}", job_, setting.first, setting.second)});
    unsetenv("COLLECTIVE_OPS_ALGORITHM");
    unsetenv("COLLECTIVE_OPS_PATH");
    bind(&own_core_);
    if (!made.ok()) return made.status();
    found = std::move(*made);
    return found.get();
  }

  // Nanoseconds of `calls` calls on the slowest rank.
  Result<double> batch(const Setting& setting, const Call& call, int calls) {
    auto comm = communicator(setting);
    if (!comm.ok()) return comm.status();
    if (Status status = (*comm)->barrier(); !status.ok()) return status;
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) {
      if (Status status = (*comm)->run(call); !status.ok()) return status;
    }
    double mine = std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
    auto referee = communicator({"auto", "auto"});
    if (!referee.ok()) return referee.status();
    const Status status = (*referee)->all_reduce(&mine, &mine, 1, DataType::kFloat64, ReduceOp::kMax);
    if (!status.ok()) return status;
    return mine;
  }

  Status measure(std::vector<Contender>& contenders, size_t bytes) {
    std::map<bool, RankCase> cases;  // by whether the memory is shared
    for (const bool shared : {true, false}) {
      auto made = RankCase::make({.collective = std::string(name_of(spec_.collective)),
                                  .type = std::string(name_of(spec_.type)),
                                  .memory = shared ? "shared" : "private",
                                  .bytes = bytes},
                                 rank_, spec_.ranks);
      if (!made.ok()) return made.status();
      made->fill();
      cases.emplace(shared, std::move(*made));
    }
    std::vector<int> calls(contenders.size());
    std::map<bool, double> best;  // of each memory
    for (size_t i = 0; i < contenders.size(); ++i) {
      const Call& call = cases.at(contenders[i].point.shared).call();
      std::optional<double> least;
      for (int attempt = 0; attempt < 3; ++attempt) {  // the first finds pages and programs
        const bool warms = attempt == 0 && bytes <= kSmallCall;
        auto once = batch(contenders[i].setting, call, warms ? kEagerDepth : kFirstCalls);
        if (!once.ok()) return once.status();
        if (warms) continue;
        least = std::min(least.value_or(*once), *once);
      }
      contenders[i].point.us.push_back(*least / kFirstCalls / 1e3);
      calls[i] = static_cast<int>(
          std::clamp(spec_.batch_ms * 1e6 / (*least / kFirstCalls), 2.0, double{kMostCalls}));
      double& least_of_all = best.try_emplace(contenders[i].point.shared, *least).first->second;
      least_of_all = std::min(least_of_all, *least);
    }
    for (int round = 0; round < spec_.rounds; ++round) {
      for (size_t k = 0; k < contenders.size(); ++k) {
        // There and back, so that nobody always follows the same one.
        const size_t i = round % 2 == 0 ? k : contenders.size() - 1 - k;
        SweepPoint& point = contenders[i].point;
        if (point.us.front() * kFirstCalls * 1e3 > kFarBehind * best.at(point.shared)) continue;
        auto took = batch(contenders[i].setting, cases.at(point.shared).call(), calls[i]);
        if (!took.ok()) return took.status();
        point.us.push_back(*took / calls[i] / 1e3);
      }
    }
    for (Contender& one : contenders) {
      if (one.point.us.size() > 1) one.point.us.erase(one.point.us.begin());
    }
    return {};
  }

  // Each rank stays on a core, in turn: then the same is measured in every round.
  void choose_core() {
    CPU_ZERO(&own_core_);
    if (sched_getaffinity(0, sizeof(all_cores_), &all_cores_) != 0) return;
    std::vector<size_t> cores;
    for (size_t i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &all_cores_)) cores.push_back(i);
    }
    if (!cores.empty()) CPU_SET(cores[static_cast<size_t>(rank_) % cores.size()], &own_core_);
  }
  // Where that is forbidden, ranks are where the system puts them.
  static void bind(const cpu_set_t* cores) { (void)sched_setaffinity(0, sizeof(*cores), cores); }

  const SweepSpec& spec_;
  int rank_;
  cpu_set_t all_cores_{}, own_core_{};
  std::string job_;
  std::map<Setting, std::unique_ptr<Communicator>> communicators_;
};

}  // namespace

Result<std::vector<SweepPoint>> sweep(const SweepSpec& spec) {
  if (spec.ranks < 1 || spec.sizes.empty() || spec.rounds < 1) {
    return Status(ErrorCode::kInvalidArgument, "a sweep needs ranks, sizes and rounds");
  }
  const std::string job = fmt::format("sweep.{}", getpid());
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  for (int rank = 1; rank < spec.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // it has ended before the line above
      const auto done = Rank(spec, rank, job).run();
      if (!done.ok()) fmt::print(stderr, "sweep: rank {}: {}\n", rank, done.status().message());
      _exit(done.ok() ? 0 : 1);
    }
    if (child < 0) {
      for (const pid_t started : children) kill(started, SIGKILL);
      return Status(
          ErrorCode::kSystem,
          fmt::format("a sweep of {} ranks: no process for rank {} could be made", spec.ranks, rank));
    }
    children.push_back(child);
  }
  auto points = Rank(spec, 0, job).run();
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  return points;
}

}  // namespace collective_ops::tune
