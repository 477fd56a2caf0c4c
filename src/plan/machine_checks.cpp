// What a finished call is held against, and the words for what is wrong.
#include <algorithm>

#include <fmt/format.h>

#include "plan/machine.h"

namespace collective_ops::proof {

using Kind = Instruction::Kind;

namespace {

bool moves_from_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kScatter;
}

}  // namespace

bool Machine::check_output(int r) {
  const CallState& call = calls_[ranks_[r].call];
  const Plan& plan = *call.call.plan;
  const Geometry& geometry = call.geometry;
  const Window& window = call.output[r];
  if (window.size == 0) return true;
  const bool gathers = has_counts(plan.output);  // block b is from rank b
  for (int b = 0; b < (gathers ? n_ : 1); ++b) {
    const Extent block = geometry.in(plan.output, !gathers, r, b);
    if (block.length == 0) continue;
    const uint64_t begin = window.offset + block.offset;
    std::vector<Piece> pieces;
    if (!read(r, {window.memory, begin, begin + block.length, Space::kOutput, r}, pieces)) return false;
    const int source = gathers ? b : moves_from_root(plan.collective) ? call.call.binding.root : -1;
    int64_t expected = 0;
    if (has_counts(plan.input)) {  // block r is for rank r
      expected = static_cast<int64_t>(geometry.in(plan.input, false, std::max(source, 0), r).offset);
    }
    uint64_t at = 0;
    for (const Piece& piece : pieces) {
      const Extent where{block.offset + at, piece.length};
      if (!check_parts(r, piece.value, where, source, expected + static_cast<int64_t>(at))) return false;
      at += piece.length;
    }
  }
  return true;
}

// source: the rank whose input is expected there, or -1 for all of them combined.
bool Machine::check_parts(int r, const Value& value, Extent where, int source, int64_t expected) {
  const RankState& state = ranks_[r];
  const std::vector<Part>& parts = combinations_.parts(value.parts);
  std::vector<int> times(n_, 0);
  bool ordered = true;
  for (size_t k = 0; k < parts.size(); ++k) {
    const Part& part = parts[k];
    if (part.call != state.call || value.origin + part.skew != expected) {
      return fail(
          fmt::format("rank {} has in its output of call {}, at byte {}, byte {} of rank {}'s input of "
                      "call {}, where byte {} belongs",
                      r, state.call, where.offset, value.origin + part.skew, part.rank, part.call, expected));
    }
    ++times[part.rank];
    ordered &= part.rank == k;
  }
  for (int q = 0; q < n_; ++q) {
    const int wanted = source < 0 || source == q;
    if (times[q] == wanted) continue;
    return fail(
        fmt::format("rank {} has in bytes [{}, {}) of its output of call {} the input of rank {} {} times "
                    "instead of {}",
                    r, where.offset, where.offset + where.length, state.call, q, times[q], wanted));
  }
  if (source < 0 && !ordered && calls_[state.call].call.plan->rank_ordered) {
    return fail(
        fmt::format("rank {} has in its output of call {}, at byte {}, a result that was not combined "
                    "in the order of ranks",
                    r, state.call, where.offset));
  }
  return true;
}

// Unchanged, but for what the output of a call in place covers.
bool Machine::check_input(int r) {
  const CallState& call = calls_[ranks_[r].call];
  const Window& input = call.input[r];
  const Window& output = call.output[r];
  const bool shared = input.memory == output.memory;
  std::vector<Bytes> kept;
  if (!shared || output.size == 0) {
    kept = {input.bytes(Space::kInput, r)};
  } else {
    const uint64_t end = input.offset + input.size, output_end = output.offset + output.size;
    kept.push_back({input.memory, input.offset, std::min(end, output.offset), Space::kInput, r});
    kept.push_back({input.memory, std::max(input.offset, output_end), end, Space::kInput, r});
  }
  for (const Bytes& bytes : kept) {
    if (bytes.begin >= bytes.end) continue;
    std::vector<Piece> pieces;
    if (!read(r, bytes, pieces, true)) return false;
    uint64_t at = bytes.begin - input.offset;
    for (const Piece& piece : pieces) {
      const auto& parts = combinations_.parts(piece.value.parts);
      if (parts.size() != 1 || parts[0].rank != static_cast<uint32_t>(r) || parts[0].call != ranks_[r].call ||
          piece.value.origin != static_cast<int64_t>(at)) {
        return fail(fmt::format("rank {}'s input of call {} was changed at byte {}", r, ranks_[r].call, at));
      }
      at += piece.length;
    }
  }
  return true;
}

// Nobody leaves a barrier before all have come.
bool Machine::check_barrier(int r) {
  const CallState& call = calls_[ranks_[r].call];
  if (call.call.plan->collective != Collective::kBarrier) return true;
  for (int q = 0; q < n_; ++q) {
    const Clocks& arrival = call.arrivals[q];
    if (!arrival.empty() && arrival[q] <= ranks_[r].clocks[q]) continue;
    return fail(fmt::format("rank {} may leave the barrier before rank {} has come", r, q));
  }
  return true;
}

bool Machine::fail(std::string text) {
  if (error_.ok()) {
    error_ = Status(ErrorCode::kInternal,
                    fmt::format("proof: {} ranks, plan {}: {}", n_, calls_[0].call.plan->name, text));
  }
  return false;
}

std::string Machine::place(const Access& access) const {
  if (access.instruction == Access::kByCaller) {
    return fmt::format("the caller of rank {} (call {})", access.rank, access.call);
  }
  return fmt::format("rank {} (call {}, instruction {}, iteration {})", access.rank, access.call,
                     access.instruction, access.iteration);
}

std::string Machine::place(int r) const { return place(access_of(r)); }

std::string Machine::describe_wait(int r) const {
  const RankState& state = ranks_[r];
  if (!state.entered) return fmt::format("rank {} waits for a slot in call {}", r, state.call);
  const Instruction& instruction = calls_[state.call].programs[r].instructions[state.at];
  const std::string who = place(r) + fmt::format(" waits for rank {}", instruction.peer);
  if (instruction.kind == Kind::kAwait) return who + " to arrive";
  if (instruction.kind == Kind::kReceive) return who + "'s message";
  return fmt::format("{} to reach step {}", who,
                     instruction.step + (state.iteration - instruction.lag) * instruction.step_stride);
}

void Machine::report_deadlock() {
  constexpr int kNamed = 4;
  std::string text;
  int stuck = 0;
  for (int r = 0; r < n_; ++r) {
    if (finished(r)) continue;
    if (++stuck <= kNamed) text += (text.empty() ? "" : "; ") + describe_wait(r);
  }
  if (stuck > kNamed) text += fmt::format("; and {} more", stuck - kNamed);
  if (stuck > 0) fail("nobody can go on: " + text);
}

}  // namespace collective_ops::proof
