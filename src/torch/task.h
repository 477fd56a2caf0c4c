// What a collective of c10d has become: one call of the core, its memory, and what traces say of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include <collective_ops/communicator.h>

#include "torch/operand.h"

namespace collective_ops::pytorch {

// Names in the traces of torch.profiler, in the spelling of PyTorch's own backends.
struct Kind {
  const char* title;     // behind the backend's name: "collective_ops:all_reduce"
  const char* metadata;  // of the event record_param_comms
  c10d::OpType type;
};

struct Task {
  Kind kind;
  Call call;
  Operand input, output;
  bool in_place = false;                    // `output` alone
  std::vector<at::Tensor> inputs, outputs;  // as the user gave them; `outputs` are the result
  std::vector<size_t> send_counts, recv_counts;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  bool async = true;
  uint64_t sequence = 0;
  uint64_t record = 0;  // in the flight recorder

  // The call, showing this task's memory and counts. Valid while the task stays where it is.
  const Call& bind() {
    call.send = in_place ? output.data() : input.data();
    call.recv = output.data();
    call.send_counts = send_counts;
    call.recv_counts = recv_counts;
    return call;
  }
};

}  // namespace collective_ops::pytorch
