// The abstract machine under proof.h: the programs of all ranks, their memories, clocks, counters and
// messages.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/abstract_memory.h"
#include "plan/geometry.h"
#include "plan/proof.h"

namespace collective_ops::proof {

struct Bytes {
  AbstractMemory* memory = nullptr;
  uint64_t begin = 0;
  uint64_t end = 0;
  Space space = Space::kInput;
  int owner = 0;
};

// A space of a rank: part of a memory, since input and output may share one.
struct Window {
  AbstractMemory* memory = nullptr;
  uint64_t offset = 0;
  uint64_t size = 0;

  Bytes bytes(Space space, int owner) const { return {memory, offset, offset + size, space, owner}; }
};

// A call as the machine sees it: what is the same for all ranks, then what belongs to each.
struct CallState {
  explicit CallState(const ProofCall& c) : call(c), geometry(*c.plan, c.binding) {}

  const ProofCall& call;
  Geometry geometry;
  std::vector<Program> programs;
  std::vector<Window> input, output, scratch;
  int arrived_before = 0;        // eager: the call that all have to have arrived at, so that the slot is free
  std::vector<Clocks> arrivals;  // empty: not yet
  struct Signal {
    uint64_t step;
    Clocks clocks;
  };
  std::vector<std::vector<Signal>> signals;
};

struct RankState {
  size_t call = 0;
  bool entered = false;
  size_t at = 0;  // instruction
  const Instruction* loop = nullptr;
  uint32_t iteration = 0;
  Clocks clocks;
};

struct Message {
  size_t call = 0;
  uint64_t length = 0;
  std::vector<Piece> pieces;
  Clocks clocks;
};

class Machine {
 public:
  // At least one call; all can be bound, and are of groups of one size.
  explicit Machine(std::span<const ProofCall> calls);

  // Lowers the programs and lays the memories out. To be called once, before run().
  Status prepare();
  Status run(const Schedule& schedule);

 private:
  void place_buffers(CallState& state);
  bool finished(int r) const { return ranks_[r].call == calls_.size(); }
  // One instruction; false: nothing to do, or blocked, or an error was found.
  bool step(int r);
  bool enter(int r);
  bool leave(int r);
  bool execute(int r, const Instruction& instruction);
  bool data(int r, const Instruction& instruction);
  bool wait(int r, const Instruction& instruction);
  bool run_some(int r, int limit);
  int rank_at(const Schedule& schedule, int turn) const;

  bool read(int r, const Bytes& bytes, std::vector<Piece>& pieces, bool may_be_unwritten = false);
  bool write(int r, Bytes bytes, std::span<const Piece> pieces);
  bool combine(int r, const std::vector<std::vector<Piece>>& sources, std::vector<Piece>& result);
  bool bind(int r, const Operand& operand, Bytes& bytes);
  bool check_output(int r);
  bool check_input(int r);
  bool check_barrier(int r);
  bool check_parts(int r, const Value& value, Extent where, int source, int64_t expected);

  Access access_of(int r) const;
  void join(int r, const Clocks& other);
  Clocks release(int r);
  bool fail(std::string text);
  std::string place(int r) const;
  std::string place(const Access& access) const;
  void report_deadlock();
  std::string describe_wait(int r) const;

  const int n_;
  std::vector<CallState> calls_;
  std::vector<RankState> ranks_;
  std::deque<AbstractMemory> memories_;                          // stable addresses
  std::map<std::pair<int, int>, std::deque<Message>> messages_;  // (from, to)
  Combinations combinations_;
  Status error_;
};

}  // namespace collective_ops::proof
