// A plan bound to one call, rank and size: what the executor runs. Loops over chunks stay loops;
// everything else is resolved to byte offsets. Made once per signature and cached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

#include "plan/plan.h"

namespace collective_ops {

// What lower() needs to know of a call.
struct Binding {
  int rank = 0;
  int world_size = 1;
  int root = 0;
  size_t element_size = 4;
  size_t count = 0;  // elements, as in the call: of the vector (kSlices), else of one block
  // Of v variants: elements of block b; of all_to_all_v those from rank s to rank d at s * world_size + d.
  // Empty otherwise.
  std::vector<size_t> counts;
  size_t chunk_bytes = 256 * 1024;  // a multiple of 64
};

// Bytes in somebody's memory. In a loop over chunks, chunk c of it is
//   [base + (ring > 0 ? (c % ring) * ring_stride : c * chunk_bytes), + clamp(length - c * chunk_bytes, 0,
//   chunk_bytes))
// and outside of such a loop [base, base + length).
struct Operand {
  Space space = Space::kInput;
  uint16_t owner = 0;
  uint16_t ring = 0;
  uint64_t base = 0;
  uint64_t length = 0;
  uint64_t ring_stride = 0;
};

struct Instruction {
  enum class Kind : uint8_t {
    kCopy,    // operands[first] <- operands[first + 1]; nothing to do where they are the same memory
    kReduce,  // `destinations` operands, then `sources` operands
    kArrive,
    kAwait,    // peer
    kSignal,   // counter <- step + iteration * step_stride
    kWait,     // until peer's counter >= step + (iteration - lag) * step_stride; skipped if iteration < lag
    kSend,     // operands[first] to peer
    kReceive,  // operands[first] from peer
    kLoop,     // `trips` iterations of the instructions up to the matching kEndLoop
    kEndLoop,  // back to the instruction after `target`
  };
  Kind kind = Kind::kCopy;
  uint8_t lag = 0;
  uint16_t peer = 0;
  uint16_t destinations = 0;
  uint16_t sources = 0;
  uint32_t first = 0;  // index of the first operand
  uint32_t step = 0;   // steps start at 1 and never fall within a program
  uint32_t step_stride = 0;
  uint32_t trips = 0;   // kLoop: iterations, largest lag included
  uint32_t chunks = 0;  // kLoop: chunks; data statements outside [0, chunks) are skipped
  uint32_t target = 0;
};

struct Program {
  std::vector<Instruction> instructions;
  std::vector<Operand> operands;
  size_t chunk_bytes = 0;
  size_t scratch_bytes = 0;  // of each rank
  uint64_t placed_bytes = 0;  // that this rank copies into callers' memory
  bool eager = false;
  bool reads_peer_input = false;
  bool reads_only_root_input = false;
  bool reads_peer_output = false;
  bool writes_peer_output = false;
  bool writes_only_root_output = false;
  bool rank_ordered = true;  // false: sources of kReduce may be partial results
};

// Steps of a program are at most this: an executor may keep a call's number in the bits above.
inline constexpr uint32_t kMaxStep = (1u << 24) - 1;

// The eager call s (of a group's calls of any kind) writes into slot s mod d, d being eager_depth() of its
// scratch. A rank may be ahead of its peers (the root of a broadcast waits for nobody), so before the first
// instruction the executor waits until every peer has arrived at call s - d + 1: then all have left the call that
// last used the slot. Small payloads have more slots: ranks that share a core then take turns once in many calls.
inline constexpr int kEagerDepth = 16;
inline constexpr int kSmallEagerDepth = 64;
inline constexpr uint64_t kSmallEagerBytes = 1024;
constexpr int eager_depth(uint64_t scratch_bytes) {
  return scratch_bytes <= kSmallEagerBytes ? kSmallEagerDepth : kEagerDepth;
}

// Binds a plan. All operands of an instruction have the same length; instructions on no bytes are left out.
// Errors: kInvalidArgument (rank, root or counts outside the group, element or chunk size that cannot be
// used, sizes that overflow, more than kMaxStep steps), kInternal (the plan is malformed).
Result<Program> lower(const Plan& plan, const Binding& binding);

}  // namespace collective_ops
