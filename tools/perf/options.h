// The command line of `collective-ops perf`: the options of hccl_test, and what to print.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

namespace collective_ops::perf {

enum class Format : uint8_t { kHccl, kNccl, kJson };

struct Options {
  Collective collective = Collective::kAllReduce;
  size_t begin = size_t{64} << 20;  // bytes
  size_t end = size_t{64} << 20;
  std::optional<size_t> step;  // bytes; 0: `begin` again and again
  size_t factor = 0;           // instead of `step`
  ReduceOp op = ReduceOp::kSum;
  bool op_given = false;
  int root = 0;
  DataType type = DataType::kFloat32;
  bool shared = true;
  int64_t iterations = 20;
  int64_t warmup = 5;
  bool check = true;
  int ranks = 0;  // 0: as the launcher says
  Format format = Format::kHccl;
  bool help = false;

  size_t step_bytes() const { return step.value_or((end - begin) / 10); }
  bool repeats() const { return factor == 0 && step == size_t{0}; }
};

std::string_view usage();

// kInvalidArgument names the argument and what is expected.
Result<Options> parse_options(int argc, char** argv);

// The sizes to measure, in order; where `repeats`, the one that comes again and again. A barrier has one: 0.
std::vector<size_t> sizes(const Options& options);

// Elements of the vector, or of one rank's part, in a measurement of `bytes`; rounded up, as hccl_test does.
size_t element_count(const Options& options, size_t bytes, int ranks);

// Whether the bytes of a measurement are those of all ranks' parts together.
bool has_parts(Collective collective);

}  // namespace collective_ops::perf
