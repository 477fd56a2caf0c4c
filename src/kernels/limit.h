// The limit of the machine: an all-reduce's arithmetic and memory traffic without any synchronisation.
// What a collective takes beyond this is its own cost.
#pragma once

#include <cstddef>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

namespace collective_ops {

enum class LimitMemory : unsigned char {
  kAnonymous,  // private memory
  kShared,     // a memfd, mapped shared, as ranks of one host use
};

struct LimitOptions {
  DataType type = DataType::kFloat32;
  LimitMemory memory = LimitMemory::kShared;
  bool huge_pages = true;       // asked for with MADV_HUGEPAGE; the kernel may decline
  double seconds_budget = 0.5;  // of measuring, about; memory is prefaulted before
};

struct LimitTime {
  double median = 0;  // seconds of one all-reduce
  double best = 0;
};

// Measures all slices of one in-place sum over `ranks` buffers of `bytes` each, cut among `threads`
// threads pinned to one processor each. It moves 2 * ranks * bytes: every buffer is read and written.
// Fails with kInvalidArgument on counts below one or a type that has no sum, kOutOfMemory or kSystem.
Result<LimitTime> measure_inplace_reduce(int ranks, size_t bytes, int threads,
                                         const LimitOptions& options = {});

// The median of the above in seconds, with default options; 0 if it could not be measured.
double inplace_reduce_seconds(int ranks, size_t bytes, int threads);

}  // namespace collective_ops
