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

// A rank, computed where the plan runs: (base + offset + step_factor * step + power * 2^step + distance * d
// + low_bits * (d mod 2^step)) mod n, where d is the distance that an Each of distances gives. With xor_step
// the partner in a tree or in doubling: o + (((me - o) mod n) xor 2^step) + offset, where o is the root if
// that is the base, else 0. The last three bases are neighbours in one of the two trees of terms.h. A
// statement that names a rank that does not exist is skipped.
struct RankTerm {
  enum class Base : uint8_t { kZero, kMe, kRoot, kEach, kParent, kLeftChild, kRightChild };
  Base base = Base::kMe;
  int offset = 0;
  int step_factor = 0;  // `step`: the variable of the enclosing Loop over steps
  bool xor_step = false;
  int power = 0;
  int distance = 0;
  int low_bits = 0;
  uint8_t tree = 0;  // of the last three bases: 0 or 1
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
  bool whole = true;  // the whole space, or a half of it; otherwise `block`
  RankTerm block = kMyself;
  int region = 0;  // of scratch: index into Plan::scratch
  int half = 0;    // 1, 2: of a vector in slices the first or the second half of them
  // In a region of kPiles: pile number `pile`, which holds the block that rank `sender` has for rank `block`.
  RankTerm pile = kMyself;
  RankTerm sender = kMyself;
  // Where the owner is me: that block of my input (of a source) or output (of a destination), which need not
  // be staged for me.
  bool own_is_callers = false;
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

// A statement is repeated for q in a set, where kEachRank stands for q, or for distances d in a set, where 0
// < d < n unless said otherwise and `step` is that of the enclosing Loop.
enum class Each : uint8_t {
  kNone,
  kAll,     // q = me, me+1, ... : starts differ, so that ranks do not all hit one peer
  kOthers,  // the same without me
  // In a Loop of kDoubling, with p as there: the ranks q of which q mod p shares the bits from `step` up with
  // me, or with my partner.
  kMyShare,
  kPartnersShare,
  kDistances,   // all d
  kLowestBit,   // d whose lowest bit is 2^step
  kHighestBit,  // d whose highest bit is 2^step
  kBit,         // d that have the bit 2^step
  kSubtree,  // 0 <= d < 2^step, of ranks below the edge of a binomial tree: child + d, relative to o, is one
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
  // kChild where v mod 2^(step+1) = 2^step, kParent where it is 0 and v + 2^step is a rank. In a Loop of
  // kFold: kUpper where v has the bit 2^step, kLower where it has not and v + 2^step is a rank.
  enum class Only : uint8_t { kAlways, kChild, kParent, kUpper, kLower } only = Only::kAlways;
};

struct Loop {
  enum class Over : uint8_t {
    kOnce,
    kChunks,  // pieces of the longest extent that the body touches on any rank
    kSteps,   // step = 0, 1, ...
  };
  Over over = Over::kOnce;
  // Of kSteps, where p is the largest power of two that is at most n; `descending` runs them backwards.
  enum class Steps : uint8_t {
    kRing,      // n-1 steps
    kLog2,      // ceil(log2 n)
    kDoubling,  // log2 p, run by ranks below p alone
    kFold,      // the step log2 p, where p < n: each rank from p up has one below it as its partner
  } steps = Steps::kRing;
  bool descending = false;
  std::vector<Statement> body;
};

// A part of scratch.
struct ScratchRegion {
  enum class Piece : uint8_t {
    kChunk,   // a piece holds `depth` chunks in flight: chunk c lies at c mod depth
    kExtent,  // a piece holds all of what is named: a block, or everything
    kPiles,   // n pieces that hold a block of any pair of ranks each: for blocks on their way
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
