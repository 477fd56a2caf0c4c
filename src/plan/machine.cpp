#include "plan/machine.h"

#include <algorithm>
#include <array>
#include <limits>
#include <random>

#include <fmt/format.h>

#include "plan/printer.h"

namespace collective_ops::proof {

using Kind = Instruction::Kind;

Machine::Machine(std::span<const ProofCall> calls) : n_(calls[0].binding.world_size) {
  for (const ProofCall& call : calls) calls_.emplace_back(call);
  ranks_.resize(n_);
  for (int r = 0; r < n_; ++r) {
    ranks_[r].clocks.assign(n_, 0);
    ranks_[r].clocks[r] = 1;
  }
}

Status Machine::prepare() {
  uint64_t scratch_bytes = 0, slot_bytes = 0;
  for (CallState& state : calls_) {
    Binding binding = state.call.binding;
    for (binding.rank = 0; binding.rank < n_; ++binding.rank) {
      auto program = lower(*state.call.plan, binding);
      if (!program.ok()) return program.status();
      if (binding.rank > 0 && program->scratch_bytes != state.programs[0].scratch_bytes) {
        return Status(ErrorCode::kInternal, "proof: ranks disagree about the size of scratch");
      }
      uint64_t& bytes = program->eager ? slot_bytes : scratch_bytes;
      bytes = std::max<uint64_t>(bytes, program->scratch_bytes);
      state.programs.push_back(std::move(program).value());
    }
    state.arrivals.resize(n_);
    state.signals.resize(n_);
  }
  const size_t first_scratch = memories_.size();
  for (int r = 0; r < n_; ++r) {
    memories_.emplace_back(scratch_bytes);
    for (int slot = 0; slot < kEagerDepth; ++slot) memories_.emplace_back(slot_bytes);
  }
  for (size_t c = 0; c < calls_.size(); ++c) {
    CallState& state = calls_[c];
    size_t slot = 0;  // scratch proper
    if (state.call.plan->eager) {
      slot = 1 + c % kEagerDepth;
      state.arrived_before = static_cast<int>(c) + 1 - kEagerDepth;
    }
    for (int r = 0; r < n_; ++r) {
      state.scratch.push_back(
          {&memories_[first_scratch + r * (kEagerDepth + 1) + slot], 0, state.programs[r].scratch_bytes});
    }
    place_buffers(state);
  }
  return {};
}

// The caller's buffers are new in every call.
void Machine::place_buffers(CallState& state) {
  const ProofCall& call = state.call;
  const Plan& plan = *call.plan;
  for (int r = 0; r < n_; ++r) {
    const bool has_input = !plan.input_at_root || r == call.binding.root;
    const bool has_output = !plan.output_at_root || r == call.binding.root;
    const bool can_be = has_input && has_output && !is_by_pair(plan.input);
    const bool in_place = can_be && (call.in_place || plan.collective == Collective::kBroadcast);
    const uint64_t in = has_input ? state.geometry.size_of(plan.input, r) : 0;
    const uint64_t out = has_output ? state.geometry.size_of(plan.output, r) : 0;
    AbstractMemory& first = memories_.emplace_back(in_place ? std::max(in, out) : in);
    AbstractMemory& second = in_place ? first : memories_.emplace_back(out);
    const bool gathers = in_place && plan.output == Layout::kConcatenated;
    const bool scatters = in_place && plan.input == Layout::kConcatenated;
    const uint64_t mine = gathers || scatters ? state.geometry.block(r).offset : 0;
    state.input.push_back({&first, gathers ? mine : 0, in});
    state.output.push_back({&second, scatters ? mine : 0, out});
  }
}

// Whose turn it is in a round, or in the draw of a random schedule.
int Machine::rank_at(const Schedule& schedule, int turn) const {
  switch (schedule.order) {
    case Schedule::Order::kBackward:
      return n_ - 1 - turn;
    case Schedule::Order::kOneSlow:
      return static_cast<int>((schedule.seed + 1 + turn) % n_);
    default:
      return turn;
  }
}

bool Machine::run_some(int r, int limit) {
  bool moved = false;
  while (limit-- > 0 && step(r)) moved = true;
  return moved;
}

Status Machine::run(const Schedule& schedule) {
  constexpr int kUntilBlocked = std::numeric_limits<int>::max();
  std::mt19937_64 random(schedule.seed);
  bool moved = true;
  while (moved && error_.ok()) {
    moved = false;
    if (schedule.order == Schedule::Order::kRandom) {
      for (int i = 0; i < 4 * n_; ++i) {
        moved |= run_some(static_cast<int>(random() % n_), 1 + static_cast<int>(random() % 8));
      }
    }
    // Of a random schedule: only to find out whether nobody can move.
    for (int turn = 0; turn < n_ && !(moved && schedule.order == Schedule::Order::kRandom); ++turn) {
      const bool slow = schedule.order == Schedule::Order::kOneSlow && turn == n_ - 1 && n_ > 1;
      if (slow && moved) continue;
      const bool one = slow || schedule.order == Schedule::Order::kRandom;
      moved |= run_some(rank_at(schedule, turn), one ? 1 : kUntilBlocked);
    }
  }
  if (!error_.ok()) return error_;
  report_deadlock();
  for (const auto& [pair, queue] : messages_) {
    if (!queue.empty()) {
      fail(fmt::format("rank {} sent {} messages to rank {} that were not received", pair.first, queue.size(),
                       pair.second));
    }
  }
  return error_;
}

bool Machine::step(int r) {
  if (!error_.ok() || finished(r)) return false;
  RankState& state = ranks_[r];
  if (!state.entered) return enter(r);
  const Program& program = calls_[state.call].programs[r];
  if (state.at == program.instructions.size()) return leave(r);
  return execute(r, program.instructions[state.at]);
}

bool Machine::enter(int r) {
  RankState& state = ranks_[r];
  CallState& call = calls_[state.call];
  if (call.arrived_before > 0) {
    const CallState& later = calls_[call.arrived_before];
    for (const Clocks& arrival : later.arrivals) {
      if (arrival.empty()) return false;
    }
    for (const Clocks& arrival : later.arrivals) join(r, arrival);
  }
  // The caller has its hands on both buffers until now.
  const Window& input = call.input[r];
  const Window& output = call.output[r];
  for (const Window& window : {output, input}) {
    const Bytes everything{window.memory, 0, window.memory->size(), Space::kOutput, r};
    if (window.memory->size() == 0) continue;
    if (!write(r, everything, std::array{Piece{window.memory->size(), {}}})) return false;
  }
  if (input.size > 0) {
    const Piece mine{input.size, {combinations_.input_of(static_cast<uint32_t>(state.call), r), 0}};
    if (!write(r, input.bytes(Space::kInput, r), {&mine, 1})) return false;
  }
  state.entered = true;
  state.at = 0;
  return true;
}

bool Machine::leave(int r) {
  RankState& state = ranks_[r];
  CallState& call = calls_[state.call];
  if (call.arrivals[r].empty()) {
    return fail(fmt::format("rank {} left call {} without arriving", r, state.call));
  }
  if (!check_output(r) || !check_input(r) || !check_barrier(r)) return false;
  for (const Window& window : {call.input[r], call.output[r]}) {
    if (window.memory->size() == 0) continue;
    const Bytes everything{window.memory, 0, window.memory->size(),
                           window.memory == call.output[r].memory ? Space::kOutput : Space::kInput, r};
    if (!write(r, everything, std::array{Piece{window.memory->size(), {}}})) return false;
  }
  ++state.call;
  state.entered = false;
  return true;
}

bool Machine::execute(int r, const Instruction& instruction) {
  RankState& state = ranks_[r];
  CallState& call = calls_[state.call];
  switch (instruction.kind) {
    case Kind::kArrive:
      if (!call.arrivals[r].empty()) return fail(place(r) + " arrives twice");
      call.arrivals[r] = release(r);
      break;
    case Kind::kAwait:
    case Kind::kWait:
      if (!wait(r, instruction)) return false;
      break;
    case Kind::kSignal: {
      const uint64_t value = instruction.step + uint64_t{state.iteration} * instruction.step_stride;
      auto& signals = call.signals[r];
      if (value == 0 || (!signals.empty() && value < signals.back().step)) {
        return fail(fmt::format("{} lowers its counter to {}", place(r), value));
      }
      signals.push_back({value, release(r)});
      break;
    }
    case Kind::kLoop:
      state.loop = &instruction;
      state.iteration = 0;
      break;
    case Kind::kEndLoop:
      if (++state.iteration < state.loop->trips) {
        state.at = instruction.target + 1;
        return true;
      }
      state.loop = nullptr;
      state.iteration = 0;
      break;
    default:
      if (!data(r, instruction)) return false;
  }
  ++state.at;
  return true;
}

// False: blocked.
bool Machine::wait(int r, const Instruction& instruction) {
  const RankState& state = ranks_[r];
  CallState& call = calls_[state.call];
  if (instruction.kind == Kind::kAwait) {
    const Clocks& arrival = call.arrivals[instruction.peer];
    if (arrival.empty()) return false;
    join(r, arrival);
    return true;
  }
  if (state.iteration < instruction.lag) return true;
  const uint64_t wanted =
      instruction.step + uint64_t{state.iteration - instruction.lag} * instruction.step_stride;
  const auto& signals = call.signals[instruction.peer];
  const auto first = std::ranges::lower_bound(signals, wanted, {}, &CallState::Signal::step);
  if (first == signals.end()) return false;
  join(r, first->clocks);
  return true;
}

// The bytes of an operand in this iteration; none where its chunk is empty.
bool Machine::bind(int r, const Operand& operand, Bytes& bytes) {
  const RankState& state = ranks_[r];
  const CallState& call = calls_[state.call];
  const Program& program = call.programs[r];
  const Instruction& instruction = program.instructions[state.at];
  uint64_t begin = operand.base, length = operand.length;
  if (state.loop != nullptr) {
    const uint64_t chunk = state.iteration - instruction.lag;
    const uint64_t skipped = chunk * program.chunk_bytes;
    length = std::min<uint64_t>(length - std::min(length, skipped), program.chunk_bytes);
    begin += operand.ring > 0 ? chunk % operand.ring * operand.ring_stride : skipped;
  }
  const Window& window = operand.space == Space::kInput    ? call.input[operand.owner]
                         : operand.space == Space::kOutput ? call.output[operand.owner]
                                                           : call.scratch[operand.owner];
  if (length > 0 && begin + length > window.size) {
    return fail(fmt::format("{} touches [{}, {}) of rank {}'s {}, which has {} bytes", place(r), begin,
                            begin + length, operand.owner, name_of(operand.space), window.size));
  }
  bytes = {window.memory, window.offset + begin, window.offset + begin + length, operand.space,
           operand.owner};
  return true;
}

bool Machine::data(int r, const Instruction& instruction) {
  RankState& state = ranks_[r];
  if (state.loop != nullptr &&
      (state.iteration < instruction.lag || state.iteration - instruction.lag >= state.loop->chunks)) {
    return true;
  }
  const Program& program = calls_[state.call].programs[r];
  std::vector<Bytes> bytes(instruction.destinations + instruction.sources);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!bind(r, program.operands[instruction.first + i], bytes[i])) return false;
  }
  if (bytes[0].begin == bytes[0].end) return true;
  const std::span destinations(bytes.data(), instruction.destinations);
  const std::span sources = std::span(bytes).subspan(instruction.destinations);
  for (const Bytes& to : destinations) {
    for (const Bytes& from : sources) {
      if (to.memory != from.memory || to.begin >= from.end || from.begin >= to.end) continue;
      if (to.begin != from.begin) return fail(place(r) + " has operands that overlap in part");
      if (instruction.kind == Kind::kCopy) return true;  // onto itself
    }
  }
  std::vector<Piece> result;
  if (instruction.kind == Kind::kReceive) {
    auto& queue = messages_[{instruction.peer, r}];
    if (queue.empty()) return false;
    const Message& message = queue.front();
    if (message.call != state.call || message.length != bytes[0].end - bytes[0].begin) {
      return fail(fmt::format("{} receives {} bytes, but rank {} sent {} in call {}", place(r),
                              bytes[0].end - bytes[0].begin, instruction.peer, message.length, message.call));
    }
    join(r, message.clocks);
    result = message.pieces;
    queue.pop_front();
  } else {
    std::vector<std::vector<Piece>> read_pieces(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      if (!read(r, sources[i], read_pieces[i])) return false;
    }
    if (!combine(r, read_pieces, result)) return false;
  }
  if (instruction.kind == Kind::kSend) {
    messages_[{r, instruction.peer}].push_back(
        {state.call, bytes[0].end - bytes[0].begin, std::move(result), release(r)});
    return true;
  }
  return std::ranges::all_of(destinations, [&](const Bytes& to) { return write(r, to, result); });
}

bool Machine::combine(int r, const std::vector<std::vector<Piece>>& sources, std::vector<Piece>& result) {
  if (sources.size() == 1) {
    result = sources[0];
    return true;
  }
  const bool in_one_go = calls_[ranks_[r].call].call.plan->rank_ordered;
  std::vector<size_t> at(sources.size(), 0);
  std::vector<uint64_t> used(sources.size(), 0);
  std::vector<Value> values(sources.size());
  while (at[0] < sources[0].size()) {
    uint64_t length = std::numeric_limits<uint64_t>::max();
    for (size_t s = 0; s < sources.size(); ++s) {
      const Piece& piece = sources[s][at[s]];
      length = std::min(length, piece.length - used[s]);
      values[s] = {piece.value.parts, piece.value.origin + static_cast<int64_t>(used[s])};
      if (in_one_go && combinations_.parts(piece.value.parts).size() > 1) {
        return fail(place(r) + " reduces a partial result, though the plan says rank_ordered");
      }
    }
    result.push_back({length, combinations_.combine(values)});
    for (size_t s = 0; s < sources.size(); ++s) {
      used[s] += length;
      if (used[s] == sources[s][at[s]].length) ++at[s], used[s] = 0;
    }
  }
  return true;
}

bool Machine::read(int r, const Bytes& bytes, std::vector<Piece>& pieces, bool may_be_unwritten) {
  const auto conflict = bytes.memory->read(bytes.begin, bytes.end, access_of(r), ranks_[r].clocks, pieces);
  if (conflict) {
    return fail(fmt::format("{} reads bytes [{}, {}) of rank {}'s {} in no order with a write: {}", place(r),
                            conflict->begin, conflict->end, bytes.owner, name_of(bytes.space),
                            place(conflict->earlier)));
  }
  for (const Piece& piece : pieces) {
    if (piece.value.parts == 0 && !may_be_unwritten) {
      return fail(fmt::format("{} reads bytes of rank {}'s {} that nobody wrote", place(r), bytes.owner,
                              name_of(bytes.space)));
    }
  }
  return true;
}

bool Machine::write(int r, Bytes bytes, std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    const auto conflict = bytes.memory->write(bytes.begin, piece, access_of(r), ranks_[r].clocks);
    if (conflict) {
      return fail(fmt::format("{} writes bytes [{}, {}) of rank {}'s {} in no order with a {}: {}", place(r),
                              conflict->begin, conflict->end, bytes.owner, name_of(bytes.space),
                              conflict->earlier_wrote ? "write" : "read", place(conflict->earlier)));
    }
    bytes.begin += piece.length;
  }
  return true;
}

Access Machine::access_of(int r) const {
  const RankState& state = ranks_[r];
  const bool inside = state.entered && state.at < calls_[state.call].programs[r].instructions.size();
  return {static_cast<uint32_t>(r), state.clocks[r], static_cast<uint32_t>(state.call),
          inside ? static_cast<int32_t>(state.at) : Access::kByCaller, state.iteration};
}

void Machine::join(int r, const Clocks& other) {
  Clocks& clocks = ranks_[r].clocks;
  for (int q = 0; q < n_; ++q) clocks[q] = std::max(clocks[q], other[q]);
}

Clocks Machine::release(int r) {
  Clocks published = ranks_[r].clocks;
  ++ranks_[r].clocks[r];
  return published;
}

}  // namespace collective_ops::proof
