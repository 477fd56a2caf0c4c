// Prints how fast this machine does the arithmetic and memory traffic of an in-place all-reduce without any
// synchronisation: the limit that a collective's time is compared with.
//   reduce_kernel_benchmark --ranks 2 8 --sizes 65536 104857600 --types float32 bfloat16
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "kernels/limit.h"
#include "kernels/reduce.h"
#include "kernels/targets.h"

namespace {

using namespace collective_ops;

struct Settings {
  std::vector<int> ranks = {2, 8};
  std::vector<size_t> sizes = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 100 << 20};
  std::vector<std::string> types = {"float32", "bfloat16"};
  int threads = 0;
  double seconds = 0.5;
  bool anonymous = false;
  bool small_pages = false;
  std::string target;
};

int run(const Settings& settings) {
  if (!settings.target.empty() && !force_kernel_target(settings.target)) {
    fmt::print(stderr, "this processor lacks the instruction set {}; it has {}\n", settings.target,
               fmt::join(supported_kernel_targets(), ", "));
    return EXIT_FAILURE;
  }
  const int processors = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int threads = settings.threads > 0 ? settings.threads : processors;
  fmt::print("# in-place sum, {} threads, {}, {} memory; GB/s counts 2 x ranks x bytes\n", threads,
             kernel_target(), settings.anonymous ? "anonymous" : "shared");
  fmt::print("{:>10} {:>6} {:>12} {:>12} {:>12} {:>10}\n", "type", "ranks", "bytes", "median_us", "best_us",
             "GB/s");
  for (const std::string& name : settings.types) {
    const auto type = data_type_from(name);
    if (!type) {
      fmt::print(stderr, "'{}' is no element type; try float32 or bfloat16\n", name);
      return EXIT_FAILURE;
    }
    for (const int ranks : settings.ranks) {
      for (const size_t bytes : settings.sizes) {
        const LimitOptions options = {
            .type = *type,
            .memory = settings.anonymous ? LimitMemory::kAnonymous : LimitMemory::kShared,
            .huge_pages = !settings.small_pages,
            .seconds_budget = settings.seconds};
        const auto time = measure_inplace_reduce(ranks, bytes, threads, options);
        if (!time.ok()) {
          fmt::print(stderr, "{}\n", time.status().message());
          return EXIT_FAILURE;
        }
        const double moved = 2.0 * ranks * static_cast<double>(bytes);
        fmt::print("{:>10} {:>6} {:>12} {:>12.2f} {:>12.2f} {:>10.1f}\n", name, ranks, bytes,
                   time.value().median * 1e6, time.value().best * 1e6, moved / time.value().median * 1e-9);
      }
    }
  }
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("The limit of this machine for in-place all-reduces");
  app.add_option("--ranks", settings.ranks, "Numbers of buffers")->check(CLI::PositiveNumber);
  app.add_option("--sizes", settings.sizes, "Bytes per buffer")->check(CLI::PositiveNumber);
  app.add_option("--types", settings.types, "Element types");
  app.add_option("--threads", settings.threads, "Threads, one per processor; 0: as many as processors");
  app.add_option("--seconds", settings.seconds, "Time for each line, about");
  app.add_option("--target", settings.target, "Instruction set to use, instead of the best");
  app.add_flag("--anonymous", settings.anonymous, "Private memory instead of shared");
  app.add_flag("--small-pages", settings.small_pages, "Do not ask for huge pages");
  CLI11_PARSE(app, argc, argv);
  return run(settings);
}
