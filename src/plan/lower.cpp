// lower(): ranks become numbers, blocks become offsets, steps are unrolled; loops over chunks remain.
#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "plan/geometry.h"
#include "plan/program.h"
#include "plan/terms.h"

namespace collective_ops {
namespace {

constexpr int kMaxRanks = std::numeric_limits<uint16_t>::max();

bool is_data(Action action) {
  return action == Action::kCopy || action == Action::kReduce || action == Action::kSend ||
         action == Action::kReceive;
}

Status check(const Plan& plan, const Binding& b) {
  const auto invalid = [](std::string text) { return Status(ErrorCode::kInvalidArgument, std::move(text)); };
  if (b.world_size < 1 || b.world_size > kMaxRanks) {
    return invalid(fmt::format("a group of {} ranks: give 1 to {}", b.world_size, kMaxRanks));
  }
  if (b.rank < 0 || b.rank >= b.world_size) {
    return invalid(fmt::format("rank {} is not in a group of {}", b.rank, b.world_size));
  }
  if (b.root < 0 || b.root >= b.world_size) {
    return invalid(
        fmt::format("root {} is not in a group of {}; give 0 to {}", b.root, b.world_size, b.world_size - 1));
  }
  if (b.element_size == 0 || kCacheLine % b.element_size != 0) {
    return invalid(fmt::format("elements of {} bytes: give a divisor of {}", b.element_size, kCacheLine));
  }
  if (b.chunk_bytes == 0 || b.chunk_bytes % kCacheLine != 0) {
    return invalid(fmt::format("chunks of {} bytes: give a multiple of {}", b.chunk_bytes, kCacheLine));
  }
  const auto ranks = static_cast<size_t>(b.world_size);
  const size_t wanted = is_by_pair(block_layout(plan)) ? ranks * ranks : ranks;
  if (!b.counts.empty() && b.counts.size() != wanted) {
    return invalid(fmt::format("{} counts for {} ranks: give {}", b.counts.size(), ranks, wanted));
  }
  // Sums of all blocks, and of pieces of scratch, stay far from overflow.
  const size_t limit = (size_t{1} << 62) / b.element_size / (b.counts.empty() ? wanted : 1);
  size_t left = limit;
  for (size_t count : b.counts.empty() ? std::vector<size_t>{b.count} : b.counts) {
    if (count > left) return invalid(fmt::format("{} elements are more than can be addressed", count));
    left -= count;
  }
  return {};
}

class Lowering {
 public:
  Lowering(const Plan& plan, const Binding& binding)
      : plan_(plan), binding_(binding), n_(binding.world_size), geometry_(plan, binding), terms_(binding) {}

  Result<Program> run() {
    program_.chunk_bytes = binding_.chunk_bytes;
    program_.eager = plan_.eager;
    program_.reads_peer_input = plan_.reads_peer_input;
    program_.reads_only_root_input = plan_.reads_only_root_input;
    program_.reads_peer_output = plan_.reads_peer_output;
    program_.writes_peer_output = plan_.writes_peer_output;
    program_.writes_only_root_output = plan_.writes_only_root_output;
    program_.rank_ordered = plan_.rank_ordered;
    place_scratch();
    if (!error_.ok()) return error_;
    for (const Loop& loop : plan_.loops) lower_loop(loop);
    if (!error_.ok()) return error_;
    for (const Instruction& instruction : program_.instructions) {
      const Operand* to = &program_.operands[instruction.first];
      if (instruction.kind == Instruction::Kind::kCopy && to->space != Space::kScratch) program_.placed_bytes += to->length;
    }
    return std::move(program_);
  }

 private:
  struct Region {
    uint64_t base = 0;
    uint64_t piece_bytes = 0;
  };

  void fail(ErrorCode code, std::string_view what) {
    if (error_.ok()) error_ = Status(code, fmt::format("plan {}: {}", plan_.name, what));
  }

  // The longest extent that `ref` names on any rank.
  uint64_t longest(const Ref& ref) const {
    const Layout layout = layout_of(ref.space);
    if (layout == Layout::kNone) return 0;
    if (ref.half > 0) return std::max(geometry_.half(1).length, geometry_.half(2).length);
    return ref.whole && layout != Layout::kOwn ? geometry_.total() : geometry_.longest_block();
  }

  Layout layout_of(Space space) const {
    switch (space) {
      case Space::kInput:
        return plan_.input;
      case Space::kOutput:
        return plan_.output;
      case Space::kScratch:
        return block_layout(plan_);
    }
    return Layout::kNone;
  }

  template <typename Function>
  void for_each_ref(const Loop& loop, Function function) const {
    for (const Statement& statement : loop.body) {
      for (const Ref& ref : statement.destinations) function(ref);
      for (const Ref& ref : statement.sources) function(ref);
    }
  }

  void place_scratch() {
    std::vector<uint64_t> longest_named(plan_.scratch.size(), 0);
    for (const Loop& loop : plan_.loops) {
      for_each_ref(loop, [&](const Ref& ref) {
        if (ref.space != Space::kScratch) return;
        if (ref.region < 0 || ref.region >= static_cast<int>(longest_named.size())) {
          return fail(ErrorCode::kInternal, "names a region of scratch that it does not have");
        }
        longest_named[ref.region] = std::max(longest_named[ref.region], longest(ref));
      });
    }
    uint64_t end = 0;
    for (size_t i = 0; i < plan_.scratch.size(); ++i) {
      const ScratchRegion& region = plan_.scratch[i];
      const uint64_t extent = round_to_line(longest_named[i]);
      const bool chunked = region.piece == ScratchRegion::Piece::kChunk;
      const uint64_t piece = chunked ? std::min<uint64_t>(binding_.chunk_bytes, extent) : extent;
      end = round_to_line(end);  // the last region is not padded: a few bytes fit the line of a call
      regions_.push_back({end, piece});
      if (region.piece == ScratchRegion::Piece::kPiles) {
        end += piece * n_;
      } else if (chunked) {
        end += piece * region.depth * (region.per_rank ? n_ : 1);
      } else {
        end += region.per_rank ? geometry_.total() : longest_named[i];
      }
    }
    program_.scratch_bytes = end;
  }

  void lower_loop(const Loop& loop) {
    uint32_t signals = 0;
    for (const Statement& s : loop.body) {
      const bool may_lag =
          s.action == Action::kWait || (is_data(s.action) && loop.over == Loop::Over::kChunks);
      if (s.lag < 0 || s.lag > (may_lag ? std::numeric_limits<uint8_t>::max() : 0)) {
        fail(ErrorCode::kInternal, "a lag where none can be");
      }
      if (s.action == Action::kSignal || s.action == Action::kWait) {
        signals = std::max<uint32_t>(signals, s.signal + 1);
      }
    }
    uint64_t iterations = 1;
    switch (loop.over) {
      case Loop::Over::kOnce:
        lower_body(loop, {}, 0, signals);
        break;
      case Loop::Over::kChunks:
        iterations = lower_chunks(loop, signals);
        break;
      case Loop::Over::kSteps: {
        const std::vector<int> steps = terms_.steps(loop);
        iterations = steps.size();
        for (int i = 0; terms_.runs(loop) && i < static_cast<int>(iterations); ++i) {
          lower_body(loop, {.step = steps[i], .iteration = i}, i, signals);
        }
        break;
      }
    }
    // Every rank advances equally, whatever it skipped, so a step means the same on all.
    const uint64_t next = step_base_ + iterations * signals;
    if (next > kMaxStep) {
      return fail(ErrorCode::kInvalidArgument, "too many chunks; give larger chunk_bytes");
    }
    step_base_ = static_cast<uint32_t>(next);
  }

  // The number of iterations.
  uint64_t lower_chunks(const Loop& loop, uint32_t signals) {
    uint64_t extent = 0;
    for_each_ref(loop, [&](const Ref& ref) { extent = std::max(extent, longest(ref)); });
    int lag = 0;
    for (const Statement& s : loop.body) {
      if (is_data(s.action)) lag = std::max(lag, s.lag);
    }
    const uint64_t chunks = (extent + binding_.chunk_bytes - 1) / binding_.chunk_bytes;
    if (chunks == 0) return 0;
    const uint64_t trips = chunks + lag;
    if (trips > kMaxStep) {
      fail(ErrorCode::kInvalidArgument, "too many chunks; give larger chunk_bytes");
      return 0;
    }
    const auto head = static_cast<uint32_t>(program_.instructions.size());
    program_.instructions.push_back({.kind = Instruction::Kind::kLoop,
                                     .trips = static_cast<uint32_t>(trips),
                                     .chunks = static_cast<uint32_t>(chunks)});
    lower_body(loop, {.in_chunks = true}, 0, signals);
    program_.instructions.push_back({.kind = Instruction::Kind::kEndLoop, .target = head});
    return trips;
  }

  void lower_body(const Loop& loop, Place place, uint32_t iteration, uint32_t signals) {
    for (const Statement& statement : loop.body) {
      if (!terms_.runs(statement, place)) continue;
      if (!place.in_chunks && statement.action == Action::kWait && place.iteration < statement.lag) continue;
      Instruction form;
      form.lag = place.in_chunks ? static_cast<uint8_t>(statement.lag) : 0;
      const uint32_t at =
          place.in_chunks ? 0 : iteration - (statement.action == Action::kWait ? statement.lag : 0);
      form.step = step_base_ + 1 + statement.signal + at * signals;
      form.step_stride = place.in_chunks ? signals : 0;
      for (const Place& one : terms_.repetitions(statement, place)) emit(statement, one, form);
    }
  }

  void emit(const Statement& statement, const Place& place, Instruction instruction) {
    using Kind = Instruction::Kind;
    if (!is_data(statement.action)) {
      instruction.kind = statement.action == Action::kArrive   ? Kind::kArrive
                         : statement.action == Action::kAwait  ? Kind::kAwait
                         : statement.action == Action::kSignal ? Kind::kSignal
                                                               : Kind::kWait;
      const bool counts = statement.action == Action::kSignal || statement.action == Action::kWait;
      if (!counts) instruction.step = instruction.step_stride = 0;
      if (statement.action == Action::kAwait || statement.action == Action::kWait) {
        const int peer = terms_.rank_of(statement.peer, place);
        if (peer < 0) return;
        instruction.peer = static_cast<uint16_t>(peer);
      }
      program_.instructions.push_back(instruction);
      return;
    }
    instruction.step = instruction.step_stride = 0;
    emit_data(statement, place, instruction);
  }

  void emit_data(const Statement& statement, const Place& place, Instruction instruction) {
    using Kind = Instruction::Kind;
    const int peer = terms_.rank_of(statement.peer, place);
    if (peer < 0) return;
    std::vector<Operand> operands;
    const bool many = statement.action == Action::kReduce;
    if (!resolve(statement.destinations, Space::kOutput, many, place, operands)) return;
    const size_t destinations = operands.size();
    if (!resolve(statement.sources, Space::kInput, many, place, operands)) return;
    const size_t sources = operands.size() - destinations;
    size_t want_destinations = 1, want_sources = 1;
    switch (statement.action) {
      case Action::kCopy:
        instruction.kind = Kind::kCopy;
        break;
      case Action::kReduce:
        instruction.kind = Kind::kReduce;
        want_destinations = std::max<size_t>(destinations, 1);
        want_sources = std::max<size_t>(sources, 1);
        break;
      case Action::kSend:
        instruction.kind = Kind::kSend, want_destinations = 0;
        break;
      default:
        instruction.kind = Kind::kReceive, want_sources = 0;
        break;
    }
    if (destinations != want_destinations || sources != want_sources) {
      return fail(ErrorCode::kInternal, "a statement with a wrong number of operands");
    }
    for (const Operand& operand : operands) {
      if (operand.length != operands[0].length) {
        return fail(ErrorCode::kInternal, "the operands of a statement differ in length");
      }
    }
    if (operands[0].length == 0) return;
    if (statement.action == Action::kSend || statement.action == Action::kReceive) {
      instruction.peer = static_cast<uint16_t>(peer);
    }
    instruction.destinations = static_cast<uint16_t>(destinations);
    instruction.sources = static_cast<uint16_t>(sources);
    instruction.first = static_cast<uint32_t>(program_.operands.size());
    program_.operands.insert(program_.operands.end(), operands.begin(), operands.end());
    program_.instructions.push_back(instruction);
  }

  // False: a ref names no rank, so the statement is skipped. `callers`: what own_is_callers stands for.
  // `many`: an owner of kEach stands for all ranks.
  bool resolve(const std::vector<Ref>& refs, Space callers, bool many, Place place,
               std::vector<Operand>& operands) {
    for (const Ref& ref : refs) {
      if (many && ref.owner.base == RankTerm::Base::kEach) {
        for (place.each = 0; place.each < n_; ++place.each) {
          if (!append(ref, callers, place, operands)) return false;
        }
      } else if (!append(ref, callers, place, operands)) {
        return false;
      }
    }
    return true;
  }

  bool append(const Ref& ref, Space callers, const Place& place, std::vector<Operand>& operands) {
    const int owner = terms_.rank_of(ref.owner, place);
    const int block = ref.whole ? owner : terms_.rank_of(ref.block, place);
    if (owner < 0 || block < 0) return false;
    const Space space = ref.own_is_callers && owner == binding_.rank ? callers : ref.space;
    const Extent extent = extent_of(ref, space, place, owner, block);
    Operand operand{.space = space,
                    .owner = static_cast<uint16_t>(owner),
                    .base = extent.offset,
                    .length = extent.length};
    if (space == Space::kScratch && !bind_scratch(ref, block, place, operand)) return false;
    operands.push_back(operand);
    return true;
  }

  Extent extent_of(const Ref& ref, Space space, const Place& place, int owner, int block) const {
    if (ref.half > 0) return geometry_.half(ref.half);
    if (space == Space::kScratch && plan_.scratch[ref.region].piece == ScratchRegion::Piece::kPiles) {
      return geometry_.in(layout_of(space), false, terms_.rank_of(ref.sender, place), block);
    }
    return geometry_.in(layout_of(space), ref.whole, owner, block);
  }

  bool bind_scratch(const Ref& ref, int block, const Place& place, Operand& operand) {
    if (!error_.ok()) return false;
    const ScratchRegion& region = plan_.scratch[ref.region];
    const Region& placed = regions_[ref.region];
    if (region.piece == ScratchRegion::Piece::kPiles) {
      operand.base = placed.base + terms_.rank_of(ref.pile, place) * placed.piece_bytes;
      return true;
    }
    if (region.piece == ScratchRegion::Piece::kExtent) {
      operand.base = placed.base + (region.per_rank ? operand.base : 0);
      return true;
    }
    if (!place.in_chunks || region.depth < 1 || (region.per_rank && ref.whole)) {
      fail(ErrorCode::kInternal, "pieces of chunks are used outside of a loop over chunks, or all at once");
      return false;
    }
    operand.ring = static_cast<uint16_t>(region.depth);
    operand.ring_stride = placed.piece_bytes;
    operand.base = placed.base + (region.per_rank ? block * region.depth * placed.piece_bytes : 0);
    return true;
  }

  const Plan& plan_;
  const Binding& binding_;
  const int n_;
  const Geometry geometry_;
  const Terms terms_;
  std::vector<Region> regions_;
  uint32_t step_base_ = 0;
  Program program_;
  Status error_;
};

}  // namespace

Result<Program> lower(const Plan& plan, const Binding& binding) {
  if (Status status = check(plan, binding); !status.ok()) return status;
  return Lowering(plan, binding).run();
}

}  // namespace collective_ops
