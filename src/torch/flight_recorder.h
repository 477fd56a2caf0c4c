// The last calls of this process, kept for the case that something hangs or fails, and written in the schema
// of c10d's flight recorder: PyTorch's torchfrtrace reads our dumps and names the rank that is missing.
//
// TORCH_FR_BUFFER_SIZE: how many calls (default 2000, 0: none). TORCH_FR_DUMP_TEMP_FILE: where a failure
// leaves a dump, this name with the rank behind it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "torch/pytorch.h"
#include "torch/task.h"

namespace collective_ops::pytorch {

class FlightRecorder {
 public:
  static FlightRecorder& instance();

  // A number for the next two; 0: nothing is recorded. `peer`: of a message.
  uint64_t issued(const c10d::Backend& group, const std::vector<uint64_t>& global_ranks, const Task& task,
                  std::chrono::milliseconds timeout, int peer = -1);
  void started(uint64_t number);
  void ended(uint64_t number);  // well; a call that failed stays as it was

  // A pickle, as torch._C._distributed_c10d._dump_nccl_trace gives one.
  std::string dump(bool only_active = false);
  // To the file that the environment names, once for a process; none named: nothing.
  void dump_failure(int rank);

 private:
  struct Entry {
    uint64_t number = 0;
    std::string group, description;
    uint64_t sequence = 0;
    bool message = false;
    std::string name;
    std::vector<std::vector<int64_t>> input_sizes, output_sizes;
    std::vector<std::string> input_types, output_types;
    int64_t created_ns = 0, started_ns = 0, ended_ns = 0;
    int64_t timeout_ms = 0;
  };
  struct Group {
    std::string description;
    std::vector<uint64_t> ranks;
    int64_t issued = -1, started = -1, ended = -1;  // the last collective
  };

  FlightRecorder();
  Entry* find(uint64_t number);
  // Those of which no call is kept.
  void forget_groups(const std::string& newest);
  c10::IValue entry_value(const Entry& entry) const;

  std::mutex mutex_;
  std::vector<Entry> entries_;  // entry n lies at n modulo their number
  std::map<std::string, Group> groups_;
  size_t forget_at_;  // so many groups
  uint64_t last_ = 0;
  bool dumped_ = false;
};

}  // namespace collective_ops::pytorch
