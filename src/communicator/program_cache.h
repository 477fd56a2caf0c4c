// Programs of the calls that a group has made, by signature. Bounded: a training step repeats its calls.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <collective_ops/communicator.h>

#include "communicator/call_counts.h"
#include "communicator/executor.h"
#include "plan/program.h"
#include "tuner/choose.h"

namespace collective_ops {

// A program, and what reports say of it.
struct PreparedProgram {
  Program program;
  CallKernel kernel;
  ReduceKernel final_division = nullptr;  // of averages by plans that reduce partial results
  bool awaits_all = false;                // once it has run, every rank is known to have announced the call
  uint8_t algorithm = 0;                  // index into algorithm_names()
  uint64_t copied_bytes = 0;              // by this rank, into or out of scratch
  std::vector<uint64_t> read_bytes;       // from each peer's memory
  std::vector<uint64_t> written_bytes;
};

// Everything about a call that does not change from one call to the next.
struct PreparedCall {
  std::vector<CallBytes> bytes;  // of each rank
  uint64_t payload_bytes = 0;    // of this rank
  // Nothing below is there yet: bind() finds it once the ranks know each other's counts.
  bool needs_counts = false;
  // Of the plans that a plug-in chose; 0: none. Ranks compare it, since it may choose otherwise on another one.
  uint32_t choice = 0;
  // Synchronised by arrival alone. With `direct` beside it, ranks whose memory peers can reach copy nothing: with
  // a root each decides for itself (Group::run_rooted), else they find out together whether all can.
  std::optional<PreparedProgram> eager;
  std::optional<PreparedProgram> staged;  // any memory
  std::optional<PreparedProgram> push;    // outputs that peers reach
  std::optional<PreparedProgram> direct;  // memory that peers reach
  std::optional<PreparedProgram> read;    // private memory that the kernel lets peers read
};

class ProgramCache {
 public:
  // `divisor`: of averages; 0: the number of ranks.
  ProgramCache(int rank, int world_size, int divisor, Forced forced);

  // kUnsupportedType, kInvalidArgument; the pointer lives until the next call.
  Result<PreparedCall*> prepare(const Call& call);
  // Of a call that needs counts, with those of all ranks. Only the last one is kept: counts seldom repeat.
  Result<PreparedCall*> bind(const Call& call, std::vector<size_t> counts);

 private:
  struct Key {
    Collective collective;
    DataType type;
    ReduceOp op;
    int root;
    size_t count;
    std::vector<size_t> counts;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  Result<PreparedCall*> find_or_make(const Call& call, Key key);
  Result<PreparedCall> make(const Call& call, const std::vector<size_t>& counts) const;
  CallKernel kernel_of(const Call& call, const Program& program) const;
  Result<PreparedProgram> lower_named(const Call& call, const std::vector<size_t>& counts,
                                      std::string_view plan) const;

  int rank_;
  int world_size_;
  int divisor_;
  Forced forced_;
  Key last_key_{};
  PreparedCall* last_ = nullptr;
  PreparedCall unbound_;  // the last one that needs counts, then what bind() made of one
  Key bound_key_{};
  std::optional<PreparedCall> bound_;
  std::unordered_map<Key, PreparedCall, Hash> calls_;
};

// Names by which traces tell algorithms, in a fixed order.
const std::vector<std::string>& algorithm_names();
uint8_t algorithm_number(std::string_view name);

}  // namespace collective_ops
