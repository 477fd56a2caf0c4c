// A collective is a plan: plain data. A Plan is symbolic: it names blocks, peers and chunks, never
// addresses or counts, so one plan serves every size, every rank and every number of ranks.
// lower() binds it to a call (program.h); prove() checks it without a network (proof.h); cost()
// prices it (cost.h); print() shows it (printer.h).
//
// The vocabulary, for n ranks of which `me` runs the plan:
//   space     the caller's input and output, and scratch: memory of each rank that its peers see
//   block     one of n parts of a space, numbered by rank; what it spans follows from the layout
//   chunk     the c-th piece of a block, of at most chunk_bytes, inside a Loop over chunks
//   arrival   published with the call's signature; a peer that has arrived at call s has finished s-1
//   signal    a step counter that a rank raises and its peers wait for
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <collective_ops/types.h>

namespace collective_ops {

enum class Space : uint8_t { kInput, kOutput, kScratch };

// How a caller's space is divided into blocks.
enum class Layout : uint8_t {
  kSlices,        // one vector, divided into n nearly equal slices (cache-line multiples)
  kOwn,           // one block, the owner's; at offset 0
  kConcatenated,  // n blocks, one per rank, of the call's count each (or of its counts)
  // n blocks of the owner's own sizes, where each rank sends another block to each: block b of the input
  // is for rank b, block b of the output is from rank b.
  kByDestination,
  kBySource,
  kNone,
};

// A rank, computed where the plan runs: (base + offset + step_factor * step) mod n. With xor_step the
// partner in a tree or in doubling: o + (((me - o) mod n) xor 2^step), where o is the root if that is
// the base, else 0; a statement that names it is skipped where there is no such rank.
struct RankTerm {
  enum class Base : uint8_t { kZero, kMe, kRoot, kEach };
  Base base = Base::kMe;
  int offset = 0;
  int step_factor = 0;  // `step`: the variable of the enclosing Loop over steps
  bool xor_step = false;
  bool operator==(const RankTerm&) const = default;
};
inline constexpr RankTerm kMyself{RankTerm::Base::kMe};
inline constexpr RankTerm kTheRoot{RankTerm::Base::kRoot};
inline constexpr RankTerm kEachRank{RankTerm::Base::kEach};

// Some bytes: of whose memory, of which space, which block (or all of them as one extent). A block of
// scratch is as long as that block of the caller's spaces.
struct Ref {
  Space space = Space::kInput;
  RankTerm owner = kMyself;
  bool whole = true;  // the whole space; otherwise `block`
  RankTerm block = kMyself;
  int region = 0;  // of scratch: index into Plan::scratch
  bool own_is_input = false;  // where the owner is me: that block of my input, which need not be staged for me
  bool operator==(const Ref&) const = default;
};

enum class Action : uint8_t {
  kCopy,     // destination <- source
  kReduce,   // every destination <- the sources, combined in the order given
  kArrive,   // publish signature (and scratch written so far)
  kAwait,    // wait until `peer` has arrived
  kSignal,   // raise my step counter to (this iteration, signal)
  kWait,     // wait until `peer` has raised its counter to (iteration - lag, signal)
  kSend,     // message to `peer`: source. Never waits for the receiver's statement
  kReceive,  // message from `peer` into destination
};

enum class Guard : uint8_t { kEveryone, kRoot, kOthers };  // who runs a statement

// A statement is repeated for q in a set, where kEachRank stands for q.
enum class Each : uint8_t {
  kNone,
  kAll,     // q = me, me+1, ... : starts differ, so that ranks do not all hit one peer
  kOthers,  // the same without me
};

struct Statement {
  Action action = Action::kCopy;
  Guard guard = Guard::kEveryone;
  Each each = Each::kNone;
  // Works on chunk (iteration - lag) of a Loop over chunks; kWait of any Loop waits for that iteration.
  // Skipped where there is none.
  int lag = 0;
  std::vector<Ref> destinations;  // kReduce: an owner of kEachRank stands for all ranks (each = kNone)
  std::vector<Ref> sources;       // kReduce: an owner of kEachRank stands for ranks 0, 1, ... n-1 in order
  RankTerm peer = kEachRank;
  int signal = 0;
  // In a Loop over the steps of a binomial tree, for v = (me - o) mod n (o as in RankTerm, from `peer`):
  // kChild where v mod 2^(step+1) = 2^step, kParent where it is 0 and v + 2^step is a rank.
  enum class Only : uint8_t { kAlways, kChild, kParent } only = Only::kAlways;
};

struct Loop {
  enum class Over : uint8_t {
    kOnce,
    kChunks,  // pieces of the longest extent that the body touches on any rank
    kSteps,   // step = 0, 1, ...
  };
  Over over = Over::kOnce;
  // Of kSteps: n-1 steps of a ring, or ceil(log2 n) of a tree; `descending` runs them backwards.
  enum class Steps : uint8_t { kRing, kLog2 } steps = Steps::kRing;
  bool descending = false;
  std::vector<Statement> body;
};

// A part of scratch.
struct ScratchRegion {
  enum class Piece : uint8_t {
    kChunk,   // a piece holds `depth` chunks in flight: chunk c lies at c mod depth
    kExtent,  // a piece holds all of what is named: a block, or everything
  };
  std::string name;
  Piece piece = Piece::kChunk;
  bool per_rank = false;  // n pieces, one per block; of kExtent they lie as the caller's blocks do
  int depth = 2;          // of kChunk
};

struct Plan {
  std::string name;  // "two_shot"
  Collective collective = Collective::kAllReduce;
  Layout input = Layout::kSlices;
  Layout output = Layout::kSlices;
  std::vector<ScratchRegion> scratch;
  std::vector<Loop> loops;
  // Eager: scratch is the call's small slot in a ring of slots, written before arrival, so the only
  // synchronisation is the arrival. Otherwise scratch is written only after all ranks have arrived.
  bool eager = false;
  bool reads_peer_input = false;         // needs every rank's input in memory that its peers see
  bool reads_only_root_input = false;    // of the former: only the root's
  bool reads_peer_output = false;        // copies from peers' outputs, which may be private (see below)
  bool writes_peer_output = false;       // needs every rank's output there
  bool writes_only_root_output = false;  // of the former: only the root's
  // Where a plan writes no peer's output, "memory that its peers see" may also be private memory that the
  // kernel lets peers read (process_vm_readv).
  // Only the root has an input (scatter) or an output (reduce, gather); the other ranks' is of no bytes.
  bool input_at_root = false;
  bool output_at_root = false;
  // Every result is one reduction of n inputs in the order of ranks. Otherwise partial results are
  // reduced further, so an average has to be divided at the end.
  bool rank_ordered = true;
};

}  // namespace collective_ops
