// `collective-ops perf`: measures a collective between ranks, and checks its results. It starts those of one
// host itself; launchers start those of several.
//   collective-ops perf all_reduce -p 8 -b 8K -e 64M -f 2 -d fp32 -o sum
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <collective_ops/communicator.h>

#include "base/environment.h"
#include "options.h"
#include "place.h"
#include "rank_case.h"
#include "report.h"

namespace {

using namespace collective_ops;
using namespace collective_ops::perf;
using Clock = std::chrono::steady_clock;

constexpr int kUsageError = 2;

// The mean of a call in the measured batch, on the slowest rank.
Result<double> time_calls(Communicator& comm, const Call& call, const Options& options) {
  for (int64_t i = 0; i < options.warmup; ++i) {
    if (Status status = comm.run(call); !status.ok()) return status;
  }
  if (Status status = comm.barrier(); !status.ok()) return status;
  const auto begin = Clock::now();
  for (int64_t i = 0; i < options.iterations; ++i) {
    if (Status status = comm.run(call); !status.ok()) return status;
  }
  double mine = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  if (Status status = comm.all_reduce(&mine, &mine, 1, DataType::kFloat64, ReduceOp::kMax); !status.ok()) {
    return status;
  }
  return mine / static_cast<double>(options.iterations);
}

// Wrong elements of all ranks; which ranks they are on goes to standard error.
Result<uint64_t> check(Communicator& comm, RankCase& current) {
  current.fill();
  if (Status status = comm.run(current.call()); !status.ok()) return status;
  const uint64_t mine = current.wrong();
  std::vector<uint64_t> wrong(static_cast<size_t>(comm.world_size()));
  if (Status status = comm.all_gather(&mine, wrong.data(), 1, DataType::kUInt64); !status.ok()) return status;
  uint64_t sum = 0;
  for (size_t rank = 0; rank < wrong.size(); ++rank) {
    sum += wrong[rank];
    if (wrong[rank] > 0 && comm.rank() == 0) {
      fmt::print(stderr, "rank {}: {} elements of the result are wrong\n", rank, wrong[rank]);
    }
  }
  return sum;
}

Result<Measurement> measure(Communicator& comm, const Options& options, const Row& row, bool in_place) {
  auto made = RankCase::make({.collective = std::string(name_of(options.collective)),
                              .type = std::string(name_of(options.type)),
                              .op = std::string(name_of(options.op)),
                              .memory = options.shared ? "shared" : "private",
                              .bytes = row.moved_bytes,
                              .root = options.root,
                              .in_place = in_place},
                             comm.rank(), comm.world_size());
  if (!made.ok()) return made.status();
  made->fill();  // no measurement on pages that nobody has touched, or on numbers that slow the processor
  const auto microseconds = time_calls(comm, made->call(), options);
  if (!microseconds.ok()) return microseconds.status();
  Measurement measured{microseconds.value(), std::nullopt};
  if (!options.check || !made->checkable()) return measured;
  const auto wrong = check(comm, *made);
  if (!wrong.ok()) return wrong.status();
  measured.wrong = wrong.value();
  return measured;
}

Result<Row> measure_size(Communicator& comm, const Options& options, size_t bytes) {
  Row row;
  row.bytes = bytes;
  row.count = element_count(options, bytes, comm.world_size());
  const size_t parts = has_parts(options.collective) ? static_cast<size_t>(comm.world_size()) : 1;
  row.moved_bytes =
      options.collective == Collective::kBarrier ? 0 : row.count * parts * size_of(options.type);
  for (const bool in_place : {false, true}) {
    if (!(in_place ? measures_in_place(options.format, options.collective)
                   : measures_apart(options.collective))) {
      continue;
    }
    const auto measured = measure(comm, options, row, in_place);
    if (!measured.ok()) return measured.status();
    (in_place ? row.in_place : row.apart) = measured.value();
  }
  return row;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "processor";
}

Result<Machine> describe(Communicator& comm) {
  std::vector<int32_t> processes(static_cast<size_t>(comm.world_size()));
  const auto mine = static_cast<int32_t>(getpid());
  if (Status status = comm.all_gather(&mine, processes.data(), 1, DataType::kInt32); !status.ok())
    return status;
  using HostName = std::array<char, 256>;
  HostName host{};
  gethostname(host.data(), host.size() - 1);
  std::vector<HostName> names(processes.size());
  if (Status status = comm.all_gather(&host, names.data(), host.size(), DataType::kUInt8); !status.ok())
    return status;
  std::vector<std::string> hosts;
  for (const HostName& name : names) hosts.emplace_back(name.data());
  return Machine{hosts, processor_name(), {processes.begin(), processes.end()}};
}

void show(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

Result<bool> measure_all(Communicator& comm, const Options& options) {
  const auto machine = describe(comm);
  if (!machine.ok()) return machine.status();
  Report report(options, machine.value());
  const bool prints = comm.rank() == 0;
  if (prints) show(report.head());
  do {
    for (const size_t bytes : sizes(options)) {
      const auto row = measure_size(comm, options, bytes);
      if (!row.ok()) return row.status();
      const std::string text = report.row(row.value());
      if (prints) show(text);
    }
  } while (options.repeats() && options.collective != Collective::kBarrier);
  if (prints) show(report.tail());
  return report.all_right();
}

int run_rank(const Options& options, const ConnectOptions& connection) {
  const auto fail = [&](const Status& status) {
    fmt::print(stderr, "collective-ops perf: rank {}: {}\n", connection.rank, status.message());
    return 1;
  };
  auto comm = Communicator::connect(connection);
  if (!comm.ok()) return fail(comm.status());
  const auto right = measure_all(**comm, options);
  if (!right.ok()) return fail(right.status());
  return right.value() ? 0 : 1;
}

// Rank 0 is this process; the others end with it.
int start_ranks(const Options& options) {
  ConnectOptions connection{
      .rank = 0, .world_size = options.ranks, .job_id = fmt::format("perf.{}", getpid())};
  std::vector<pid_t> children;
  const pid_t parent = getpid();
  for (int rank = 1; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      std::perror("collective-ops perf: cannot start a rank");
      for (const pid_t started : children) kill(started, SIGKILL);
      return 1;
    }
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);  // it has ended before the line above
      connection.rank = rank;
      _exit(run_rank(options, connection));
    }
    children.push_back(child);
  }
  int result = run_rank(options, connection);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) result = 1;
  }
  return result;
}

int refuse(int rank, std::string_view text) {
  if (rank == 0) fmt::print(stderr, "collective-ops perf: {}\n(--help lists the options)\n", text);
  return kUsageError;
}

}  // namespace

int main(int argc, char** argv) {
  auto options = parse_options(argc, argv);
  const auto place = find_place(environment_text);
  if (!place.ok()) return refuse(0, place.status().message());
  const int rank = place->rank;
  if (!options.ok()) return refuse(rank, options.status().message());
  if (options->help) {
    if (rank == 0) std::fputs(std::string(usage()).c_str(), stdout);
    return 0;
  }
  // A shell inside an allocation counts as one rank; -p then starts more, as without a launcher.
  const bool joins = place->launched() && (place->world_size > 1 || options->ranks <= 1);
  // hccl_test's -p counts the ranks of each host.
  if (joins && options->ranks != 0 && options->ranks != place->world_size &&
      options->ranks != place->local_size) {
    return refuse(rank, fmt::format("-p {}, but the launcher has started {} ranks; leave -p out",
                                    options->ranks, place->world_size));
  }
  if (!joins && options->ranks == 0) {
    return refuse(0, "how many ranks? -p N starts them; under torchrun, mpirun or srun these are the ranks");
  }
  const int ranks = joins ? place->world_size : options->ranks;
  if (options->root >= ranks) {
    return refuse(rank, fmt::format("-r {}: the ranks are 0 to {}", options->root, ranks - 1));
  }
  if (joins) return run_rank(options.value(), {.rank = rank, .world_size = ranks});
  return start_ranks(options.value());
}
