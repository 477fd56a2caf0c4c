// Time of collectives in the C++ core, without Python: forks one process per rank of this host.
//   collective_benchmark --ranks 2 --memory shared --collective all_reduce --sizes 8,1024,1048576
// Prints one JSON object per size: median, best and worst microseconds per call, over `--repeats` batches.
// With --channel it measures nothing by itself: its ranks take orders over a socket from
// benchmarks/allreduce_benchmark.py, which measures other libraries in turn with it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <sys/wait.h>

#include <collective_ops/communicator.h>

#include "peers/rank_channel.h"
#include "perf/rank_case.h"

namespace {

using namespace collective_ops;
using perf::CaseSpec;
using perf::RankCase;
using Clock = std::chrono::steady_clock;

struct Options {
  int ranks = 2;
  CaseSpec spec;
  std::string sizes = "8,64,1024,16384,65536,262144,1048576,4194304,16777216,67108864";
  int repeats = 9;
  double batch_ms = 20;
  std::string channel;
  std::string job;  // ranks have different parents here, so the job gets a name
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int fail(const Status& status) {
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}

// Seconds of `calls` calls on this rank, after a barrier.
Result<double> run_batch(Communicator& comm, const Call& call, int64_t calls) {
  if (Status status = comm.barrier(); !status.ok()) return status;
  const auto begin = Clock::now();
  for (int64_t i = 0; i < calls; ++i) {
    if (Status status = comm.run(call); !status.ok()) return status;
  }
  return seconds_since(begin);
}

Status measure_size(Communicator& comm, const Options& options, size_t bytes) {
  CaseSpec spec = options.spec;
  spec.bytes = bytes;
  auto made = RankCase::make(spec, comm.rank(), comm.world_size());
  if (!made.ok()) return made.status();
  const Call& call = made->call();
  // All ranks must run the same number of calls: rank 0 measures one and tells.
  int64_t iterations = 0;
  for (int i = 0; i < 3; ++i) {
    const auto once = run_batch(comm, call, 1);
    if (!once.ok()) return once.status();
    iterations = std::clamp<int64_t>(static_cast<int64_t>(options.batch_ms / 1e3 / once.value()), 2, 20000);
  }
  if (Status status = comm.broadcast(&iterations, 1, DataType::kInt64, 0); !status.ok()) return status;
  std::vector<double> microseconds;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    const auto batch = run_batch(comm, call, iterations);
    if (!batch.ok()) return batch.status();
    double mine = batch.value() * 1e6 / static_cast<double>(iterations);
    if (Status status = comm.all_reduce(&mine, &mine, 1, DataType::kFloat64, ReduceOp::kMax); !status.ok()) {
      return status;
    }
    microseconds.push_back(mine);
  }
  if (comm.rank() != 0) return {};
  std::sort(microseconds.begin(), microseconds.end());
  fmt::print(
      "{{\"collective\": \"{}\", \"memory\": \"{}\", \"type\": \"{}\", \"ranks\": {}, \"bytes\": {}, "
      "\"median_us\": {:.3f}, \"best_us\": {:.3f}, \"worst_us\": {:.3f}, \"iterations\": {}}}\n",
      spec.collective, spec.memory, spec.type, options.ranks, bytes, microseconds[microseconds.size() / 2],
      microseconds.front(), microseconds.back(), iterations);
  std::fflush(stdout);
  return {};
}

using Cases = std::map<std::string, RankCase>;  // by memory

// One order of the channel: the number to answer with.
Result<double> obey(Communicator& comm, Cases& cases, const Options& options, const std::string& line) {
  std::istringstream words(line);
  std::string order;
  words >> order;
  if (order == "case") {
    CaseSpec spec = options.spec;
    words >> spec.collective >> spec.type >> spec.memory >> spec.bytes;
    cases.erase(spec.memory);
    auto made = RankCase::make(spec, comm.rank(), comm.world_size());
    if (!made.ok()) return made.status();
    cases.emplace(spec.memory, std::move(*made));
    return 0.0;
  }
  std::string memory;
  words >> memory;
  const auto found = cases.find(memory);
  if (order == "drop") {
    cases.erase(memory);
    return 0.0;
  }
  int64_t calls = 0;
  if (order == "run" && words >> calls && found != cases.end()) {
    return run_batch(comm, found->second.call(), calls);
  }
  if (order == "check" && found != cases.end()) {
    RankCase& current = found->second;
    current.fill();
    if (Status status = comm.run(current.call()); !status.ok()) return status;
    const size_t wrong = current.wrong();
    current.zero();
    if (wrong == 0) return 0.0;
    return Status(ErrorCode::kInternal, fmt::format("{} wrong elements", wrong));
  }
  return Status(ErrorCode::kInvalidArgument, fmt::format("not understood: {}", line));
}

int take_orders(Communicator& comm, const Options& options) {
  const int channel = channel_open(options.channel.c_str(), comm.rank());
  if (channel < 0) return 1;
  Cases cases;
  char line[kChannelLine];
  while (channel_next(channel, line) != 0) {
    const auto answer = obey(comm, cases, options, line);
    if (answer.ok()) {
      channel_reply(channel, "ok %.9f", answer.value());
    } else {
      std::string text = answer.status().message();
      std::replace(text.begin(), text.end(), '\n', ' ');
      channel_reply(channel, "error %s", text.c_str());
    }
  }
  return 0;
}

int run_rank(const Options& options, int rank) {
  auto connected = Communicator::connect({.rank = rank, .world_size = options.ranks, .job_id = options.job});
  if (!connected.ok()) return fail(connected.status());
  if (!options.channel.empty()) return take_orders(**connected, options);
  std::istringstream list(options.sizes);
  for (std::string item; std::getline(list, item, ',');) {
    if (Status status = measure_size(**connected, options, std::stoull(item)); !status.ok()) {
      return fail(status);
    }
  }
  return 0;
}

int start_ranks(const Options& options) {
  std::vector<pid_t> children;
  for (int rank = 1; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(run_rank(options, rank));
    }
    children.push_back(child);
  }
  int result = run_rank(options, 0);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) result = 1;
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Time of collectives in the C++ core, one process per rank"};
  app.add_option("--ranks", options.ranks, "processes to start")->capture_default_str();
  app.add_option(
         "--collective", options.spec.collective,
         "all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, all_to_all, barrier")
      ->capture_default_str();
  app.add_option("--memory", options.spec.memory, "shared (peers reach it) or private")
      ->check(CLI::IsMember({"shared", "private"}))
      ->capture_default_str();
  app.add_option("--type", options.spec.type)->capture_default_str();
  app.add_option("--op", options.spec.op)->capture_default_str();
  app.add_option("--sizes", options.sizes,
                 "bytes, separated by commas; of all ranks' parts where the collective has parts")
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "batches per size")->capture_default_str();
  app.add_option("--batch-ms", options.batch_ms, "length of a batch")->capture_default_str();
  app.add_option("--channel", options.channel,
                 "socket from which the ranks take orders, instead of measuring");
  CLI11_PARSE(app, argc, argv);
  options.job = fmt::format("collective_benchmark.{}", getpid());
  return start_ranks(options);
}
