// Time of a message between two processes of this host, in the C++ core: half a round trip, and both ways at
// once.
//   message_benchmark --memory shared --sizes 8,1024,1048576
// Prints one JSON object per size. `memcpy_us`: one thread copies as many bytes; no message can be faster.
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
  std::string memory = "shared";
  std::string sizes = "8,64,1024,16384,65536,262144,1048576,4194304,16777216,67108864";
  int repeats = 9;
  double batch_ms = 20;
  std::string job;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class Buffer {
 public:
  bool take(const std::string& memory, size_t bytes) {
    if (memory == "shared") {
      auto buffer = Communicator::allocate(bytes);
      if (!buffer.ok()) return false;
      shared_ = *buffer;
      data_ = static_cast<std::byte*>(shared_->data());
    } else {
      private_.resize(bytes + 64);
      data_ = private_.data() + (64 - reinterpret_cast<uintptr_t>(private_.data()) % 64);
    }
    std::memset(data_, 1, bytes);
    return true;
  }
  std::byte* data() const { return data_; }

 private:
  std::vector<std::byte> private_;
  std::shared_ptr<SharedBuffer> shared_;
  std::byte* data_ = nullptr;
};

int fail(const Status& status) {
  fmt::print(stderr, "{}\n", status.message());
  return 1;
}

// There and back.
Status ping_pong(Communicator& comm, const Buffer& out, const Buffer& in, size_t bytes) {
  const int peer = 1 - comm.rank();
  if (comm.rank() == 0) {
    Status sent = comm.send(out.data(), bytes, DataType::kUInt8, peer);
    return sent.ok() ? comm.recv(in.data(), bytes, DataType::kUInt8, peer) : sent;
  }
  Status received = comm.recv(in.data(), bytes, DataType::kUInt8, peer);
  return received.ok() ? comm.send(out.data(), bytes, DataType::kUInt8, peer) : received;
}

Status both_ways(Communicator& comm, const Buffer& out, const Buffer& in, size_t bytes) {
  const int peer = 1 - comm.rank();
  const Transfer transfers[] = {Transfer::send(out.data(), bytes, DataType::kUInt8, peer),
                                Transfer::receive(in.data(), bytes, DataType::kUInt8, peer)};
  return comm.exchange(transfers);
}

using Body = Status (*)(Communicator&, const Buffer&, const Buffer&, size_t);

// Microseconds per call of `body`, sorted; empty where one failed.
std::vector<double> measure(Communicator& comm, const Options& options, Body body, const Buffer& out,
                            const Buffer& in, size_t bytes) {
  int64_t iterations = 0;
  for (int i = 0; i < 3; ++i) {
    const auto begin = Clock::now();
    if (!body(comm, out, in, bytes).ok()) return {};
    iterations =
        std::clamp<int64_t>(static_cast<int64_t>(options.batch_ms / 1e3 / seconds_since(begin)), 2, 20000);
  }
  if (!comm.broadcast(&iterations, 1, DataType::kInt64, 0).ok()) return {};
  std::vector<double> microseconds;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    if (!comm.barrier().ok()) return {};
    const auto begin = Clock::now();
    for (int64_t i = 0; i < iterations; ++i) {
      if (Status status = body(comm, out, in, bytes); !status.ok()) {
        fail(status);
        return {};
      }
    }
    microseconds.push_back(seconds_since(begin) * 1e6 / static_cast<double>(iterations));
  }
  std::sort(microseconds.begin(), microseconds.end());
  return microseconds;
}

double memcpy_us(const Buffer& out, const Buffer& in, size_t bytes) {
  std::vector<double> microseconds;
  for (int i = 0; i < 9; ++i) {
    const auto begin = Clock::now();
    std::memcpy(in.data(), out.data(), bytes);
    microseconds.push_back(seconds_since(begin) * 1e6);
  }
  std::sort(microseconds.begin(), microseconds.end());
  return microseconds[4];
}

int run_rank(const Options& options, int rank) {
  auto connected = Communicator::connect({.rank = rank, .world_size = 2, .job_id = options.job});
  if (!connected.ok()) return fail(connected.status());
  Communicator& comm = **connected;
  std::istringstream list(options.sizes);
  for (std::string item; std::getline(list, item, ',');) {
    const size_t bytes = std::stoull(item);
    Buffer out, in;
    if (!out.take(options.memory, bytes) || !in.take(options.memory, bytes)) return 1;
    const std::vector<double> round = measure(comm, options, ping_pong, out, in, bytes);
    const std::vector<double> both = measure(comm, options, both_ways, out, in, bytes);
    if (round.empty() || both.empty()) return 1;
    const double copy = rank == 0 ? memcpy_us(out, in, bytes) : 0;
    if (Status status = comm.barrier(); !status.ok()) return fail(status);
    if (rank != 0) continue;
    const double one_way = round[round.size() / 2] / 2;
    fmt::print(
        "{{\"memory\": \"{}\", \"bytes\": {}, \"one_way_us\": {:.3f}, \"best_us\": {:.3f}, \"gb_per_s\": "
        "{:.2f}, "
        "\"both_ways_us\": {:.3f}, \"memcpy_us\": {:.3f}}}\n",
        options.memory, bytes, one_way, round.front() / 2, static_cast<double>(bytes) / one_way / 1e3,
        both[both.size() / 2], copy);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Time of a message between two processes, in the C++ core"};
  app.add_option("--memory", options.memory, "shared (peers reach it) or private")
      ->check(CLI::IsMember({"shared", "private"}))
      ->capture_default_str();
  app.add_option("--sizes", options.sizes, "bytes, separated by commas")->capture_default_str();
  app.add_option("--repeats", options.repeats, "batches per size")->capture_default_str();
  app.add_option("--batch-ms", options.batch_ms, "length of a batch")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  options.job = fmt::format("message_benchmark.{}", getpid());
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(run_rank(options, 1));
  }
  int result = run_rank(options, 0);
  int status = 0;
  waitpid(child, &status, 0);
  return status != 0 ? 1 : result;
}
