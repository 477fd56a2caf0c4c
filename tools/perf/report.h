// What `collective-ops perf` prints: the layouts of hccl_test and nccl-tests, byte for byte, and JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "options.h"

namespace collective_ops::perf {

struct Measurement {
  double microseconds = 0;        // of one call
  std::optional<uint64_t> wrong;  // elements of all ranks; none where nothing was checked
};

struct Row {
  size_t bytes = 0;                     // as asked for
  size_t moved_bytes = 0;               // rounded up to whole elements, and parts
  size_t count = 0;                     // elements of the vector, or of one rank's part
  std::optional<Measurement> apart;     // from one buffer into another
  std::optional<Measurement> in_place;  // none where it is not measured, or not possible
};

// GB/s (10^9 bytes) of the algorithm, and the factor that makes them those of the bus, as nccl-tests define
// it.
double algorithm_bandwidth(size_t bytes, double microseconds);
double bus_factor(Collective collective, int ranks);

struct Machine {
  std::vector<std::string> hosts;  // by rank
  std::string processor;
  std::vector<pid_t> processes;  // by rank
};

class Report {
 public:
  Report(Options options, Machine machine);

  std::string head() const;
  // Text to print at once; with --json the last of them.
  std::string row(const Row& row);
  std::string tail();
  bool all_right() const { return wrong_sizes_ == 0; }

 private:
  int ranks() const { return static_cast<int>(machine_.processes.size()); }
  std::string hccl_row(const Row& row) const;
  std::string nccl_row(const Row& row);
  std::string nccl_half(const Row& row, const std::optional<Measurement>& measured);
  std::string json_row(const Row& row, const Measurement& measured, bool in_place) const;
  std::string op_text() const;

  Options options_;
  Machine machine_;
  int wrong_sizes_ = 0;
  double bus_sum_ = 0;
  int bus_count_ = 0;
  std::vector<std::string> json_;
};

// Which of the two a format measures.
bool measures_apart(Collective collective);
bool measures_in_place(Format format, Collective collective);

}  // namespace collective_ops::perf
