// What torch.profiler sees of a call besides its range: group, ranks, sequence, sizes and type, as the event
// record_param_comms that PyTorch's tools read.
#pragma once

#include <optional>
#include <string>

#include "torch/pytorch.h"
#include "torch/task.h"

namespace collective_ops::pytorch {

// Whether anybody records functions in this thread.
bool profiled();

// "backend:title", kept for good: profilers hold on to the pointer.
const char* range_title(const std::string& backend, const char* title);

class CommsRecord {
 public:
  // `peer`: of a message, its other side, where PyTorch's tools look for it: in place of the rank.
  CommsRecord(const c10d::Backend& group, const std::vector<uint64_t>& global_ranks, const Task& task,
              std::optional<int> peer = {});

 private:
  std::optional<c10::DebugInfoGuard> info_;
  std::optional<at::RecordFunction> function_;
};

}  // namespace collective_ops::pytorch
