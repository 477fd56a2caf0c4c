// Runs a program: copies, reductions, flags and messages, in the order they stand. Flags are words in memory
// that the ranks share; messages go where the port takes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <collective_ops/types.h>

#include "communicator/call_steps.h"
#include "communicator/message_port.h"
#include "kernels/reduce.h"
#include "plan/program.h"
#include "transport/shm/group_memory.h"
#include "transport/shm/waiter.h"

namespace collective_ops {

// What a program asks of the group that runs it.
class CallHost {
 public:
  virtual ~CallHost() = default;
  virtual void arrive() = 0;
  virtual bool await(int peer) = 0;  // and compares its call; false: failed, see the waiter's status
  virtual bool read_peer(int peer, const std::byte* from, std::byte* to, size_t bytes) = 0;  // false: failed
};

// Where each rank's spaces lie, as far as a program looks. Scratch is one of a few fixed tables.
struct CallMemory {
  std::vector<std::byte*> input;
  std::vector<std::byte*> output;
  // 1: those two are addresses in the peer's process, to be read through the kernel.
  std::vector<uint8_t> remote;
  std::byte* const* scratch = nullptr;  // by rank

  explicit CallMemory(size_t ranks) : input(ranks), output(ranks), remote(ranks) {}
  std::byte* base(Space space, size_t rank) const {
    return space == Space::kInput ? input[rank] : space == Space::kOutput ? output[rank] : scratch[rank];
  }
};

struct CallKernel {
  ReduceKernel reduce = nullptr;
  size_t element_size = 1;
  int divisor = 1;
  const double* factors = nullptr;  // of kPreMulSum: one per rank
};

class Executor {
 public:
  Executor(const shm::GroupMemory& memory, int rank, shm::Waiter& waiter, CallHost& host, MessagePort& port);

  // Of the call that runs, from here to the next call of this; nullptr: none.
  void record_steps(CallSteps* steps);
  // A wait outside of the program.
  void note_wait(int peer) {
    if (steps_ == nullptr) return;
    const uint16_t one[] = {static_cast<uint16_t>(peer)};
    steps_->note(StepKind::kWait, one, 0);
  }

  // False on failure; the waiter's status says why.
  bool run(const Program& program, const CallMemory& memory, const CallKernel& kernel, uint64_t sequence);

  // Says that this rank is through with what any step of the call waits for.
  void finish(uint64_t sequence);

 private:
  struct Frame;
  struct Piece {
    std::byte* data;
    size_t bytes;
    bool remote = false;
  };

  bool execute(const Instruction& instruction, Frame& frame);
  void note(const Instruction& instruction, const Frame& frame);
  void note_move(StepKind kind, std::span<const Operand> operands, const Frame& frame, uint64_t chunk);
  bool copy(const Instruction& instruction, Frame& frame);
  bool reduce(const Instruction& instruction, Frame& frame);
  bool reduce_remote(const Instruction& instruction, Frame& frame, size_t bytes);
  bool message(const Instruction& instruction, Piece piece);
  static Piece piece_of(const Operand& operand, const Frame& frame, uint64_t chunk);

  shm::GroupMemory shared_;
  int rank_;
  shm::Waiter& waiter_;
  CallHost& host_;
  MessagePort& port_;
  CallSteps* steps_ = nullptr;
  std::vector<int64_t> waited_ns_;    // for each peer, up to the last step with a message
  std::vector<uint16_t> step_peers_;  // of the step that is noted
  bool sends_ = false;                // whether the program that runs has sent messages
  std::vector<void*> destinations_;
  std::vector<const void*> sources_;
  std::vector<std::byte> landing_;  // pieces of peers' private memory on their way into a reduction
};

}  // namespace collective_ops
