// Time of collectives in the C++ core, without Python: forks one process per rank of this host.
//   collective_benchmark --ranks 2 --memory shared --collective all_reduce --sizes 8,1024,1048576
// Prints one JSON object per size: median and best microseconds per call, over `--repeats` batches.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <csignal>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <collective_ops/communicator.h>

namespace {

using namespace collective_ops;
using Clock = std::chrono::steady_clock;

struct Options {
  int ranks = 2;
  std::string collective = "all_reduce";
  std::string memory = "shared";
  std::string type = "float32";
  std::string op = "sum";
  std::string sizes = "8,64,1024,16384,65536,262144,1048576,4194304,16777216,67108864";
  int repeats = 9;
  double batch_ms = 20;
  std::string job;  // ranks have different parents here, so the job gets a name
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Buffers {
  std::vector<std::byte> private_bytes;
  std::shared_ptr<SharedBuffer> shared;
  std::byte* data = nullptr;

  bool take(const std::string& memory, size_t bytes) {
    if (memory == "shared") {
      auto buffer = Communicator::allocate(bytes);
      if (!buffer.ok()) {
        fmt::print(stderr, "{}\n", buffer.status().message());
        return false;
      }
      shared = *buffer;
      data = static_cast<std::byte*>(shared->data());
    } else {
      private_bytes.resize(bytes + 64);
      data = private_bytes.data();
      data += 64 - reinterpret_cast<uintptr_t>(data) % 64;
    }
    std::memset(data, 0, bytes);
    return true;
  }
};

// `bytes`: the vector of all_reduce and broadcast; the whole of all_gather and reduce_scatter.
Call call_of(const Options& options, std::byte* data, size_t bytes, int rank, int ranks) {
  Call call;
  call.collective = *collective_from(options.collective);
  call.type = *data_type_from(options.type);
  call.op = *reduce_op_from(options.op);
  call.count = bytes / size_of(call.type);
  call.send = call.recv = data;
  if (call.collective == Collective::kAllGather) {
    call.count /= static_cast<size_t>(ranks);
    call.send = data + call.count * size_of(call.type) * static_cast<size_t>(rank);
  } else if (call.collective == Collective::kReduceScatter) {
    call.count /= static_cast<size_t>(ranks);
    call.recv = data + call.count * size_of(call.type) * static_cast<size_t>(rank);
  }
  return call;
}

int fail(const Status& status) {
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}

int run_rank(const Options& options, int rank) {
  auto connected = Communicator::connect({.rank = rank, .world_size = options.ranks, .job_id = options.job});
  if (!connected.ok()) return fail(connected.status());
  Communicator& comm = **connected;
  std::istringstream list(options.sizes);
  for (std::string item; std::getline(list, item, ',');) {
    const size_t bytes = std::stoull(item);
    Buffers buffers;
    if (!buffers.take(options.memory, bytes)) return 1;
    const Call call = call_of(options, buffers.data, bytes, rank, options.ranks);
    // All ranks must run the same number of calls: rank 0 measures one and tells.
    int64_t iterations = 0;
    for (int i = 0; i < 3; ++i) {
      const auto begin = Clock::now();
      if (Status status = comm.run(call); !status.ok()) return fail(status);
      iterations =
          std::clamp<int64_t>(static_cast<int64_t>(options.batch_ms / 1e3 / seconds_since(begin)), 2, 20000);
    }
    if (Status status = comm.broadcast(&iterations, 1, DataType::kInt64, 0); !status.ok())
      return fail(status);
    std::vector<double> microseconds;
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      if (Status status = comm.barrier(); !status.ok()) return fail(status);
      const auto begin = Clock::now();
      for (int64_t i = 0; i < iterations; ++i) {
        if (Status status = comm.run(call); !status.ok()) return fail(status);
      }
      double mine = seconds_since(begin) * 1e6 / static_cast<double>(iterations);
      if (Status status = comm.all_reduce(&mine, &mine, 1, DataType::kFloat64, ReduceOp::kMax);
          !status.ok()) {
        return fail(status);
      }
      microseconds.push_back(mine);
    }
    if (rank != 0) continue;
    std::sort(microseconds.begin(), microseconds.end());
    fmt::print(
        "{{\"collective\": \"{}\", \"memory\": \"{}\", \"type\": \"{}\", \"ranks\": {}, \"bytes\": {}, "
        "\"median_us\": {:.3f}, \"best_us\": {:.3f}, \"worst_us\": {:.3f}, \"iterations\": {}}}\n",
        options.collective, options.memory, options.type, options.ranks, bytes,
        microseconds[microseconds.size() / 2], microseconds.front(), microseconds.back(), iterations);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Time of collectives in the C++ core, one process per rank"};
  app.add_option("--ranks", options.ranks, "processes to start")->capture_default_str();
  app.add_option("--collective", options.collective, "all_reduce, all_gather, reduce_scatter, broadcast")
      ->capture_default_str();
  app.add_option("--memory", options.memory, "shared (peers reach it) or private")
      ->check(CLI::IsMember({"shared", "private"}))
      ->capture_default_str();
  app.add_option("--type", options.type)->capture_default_str();
  app.add_option("--op", options.op)->capture_default_str();
  app.add_option("--sizes", options.sizes, "bytes, separated by commas")->capture_default_str();
  app.add_option("--repeats", options.repeats, "batches per size")->capture_default_str();
  app.add_option("--batch-ms", options.batch_ms, "length of a batch")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (!collective_from(options.collective) || !data_type_from(options.type) || !reduce_op_from(options.op)) {
    fmt::print(stderr, "unknown collective, type or op; see --help\n");
    return 2;
  }
  options.job = fmt::format("collective_benchmark.{}", getpid());
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
