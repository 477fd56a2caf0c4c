#include "plan/play.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <utility>

#include "plan/footprint.h"
#include "plan/geometry.h"

namespace collective_ops {
namespace {

using Kind = Instruction::Kind;
constexpr double kNever = std::numeric_limits<double>::infinity();

constexpr int kWarmCalls =
    3;  // until caches and the distance between ranks have settled; eager calls run ahead
constexpr int kTimedCalls = 3;
constexpr size_t kLongProgram = 4000;          // executed instructions, from which on fewer calls are played
constexpr size_t kMostCells = 2048;            // of a memory
constexpr int kFewRanks = 32;                  // of more, a block is one cell: each rank touches those of all
constexpr uint64_t kMessagePiece = 128 << 10;  // what a channel between two ranks holds

class Player {
 public:
  Player(const PlayedCall& call, const Topology& topology)
      : call_(call),
        topology_(topology),
        n_(call.binding.world_size),
        geometry_(*call.plan, call.binding),
        footprint_(topology, topology.hosts * topology.cores) {
    const Program& first = call.programs[0];
    depth_ = first.eager ? eager_depth(first.scratch_bytes) : kEagerDepth;
    place_memories();
    const size_t longest = length_of(call.programs);
    warm_ = longest > kLongProgram ? 1 : first.eager ? depth_ + kWarmCalls : kWarmCalls;
    calls_ = warm_ + (longest > kLongProgram ? 1 : kTimedCalls);
    ranks_.resize(static_cast<size_t>(n_));
    arrivals_.assign(static_cast<size_t>(calls_), std::vector<double>(static_cast<size_t>(n_), kNever));
    signals_.resize(static_cast<size_t>(calls_), std::vector<Signals>(static_cast<size_t>(n_)));
    for (int r = 0; r < n_; ++r) core_of(r).ranks.push_back(r);
  }

  Played run() {
    while (Core* core = next_core()) step(*core);
    Played played;
    played.total_ns = (ended(calls_ - 1) - ended(warm_ - 1)) / (calls_ - warm_);
    for (const Core& core : cores_) {
      if (core.busy_ns + core.memory_ns <= played.core_ns + played.memory_ns) continue;
      played.core_ns = core.busy_ns / (calls_ - warm_);
      played.memory_ns = core.memory_ns / (calls_ - warm_);
    }
    for (const auto& [host, ns] : carried_ns_) {
      played.link_ns = std::max(played.link_ns, ns / (calls_ - warm_));
    }
    return played;
  }

 private:
  struct Signals {
    std::vector<std::pair<uint64_t, double>> raised;  // steps and when, rising
  };
  struct Rank {
    int call = 0;
    enum class At : uint8_t { kSlot, kArrive, kAwaitAll, kProgram } at = At::kSlot;
    int awaited = 1;  // peers from here on, of kSlot and kAwaitAll
    size_t instruction = 0;
    uint32_t iteration = 0;
    const Instruction* loop = nullptr;
    std::vector<double> ends;  // of its calls
  };
  struct Core {
    std::vector<int> ranks;
    size_t current = 0;  // of them, which runs
    double now = 0;
    bool idle = false;         // all of its ranks wait,
    uint64_t seen_events = 0;  // and did so after that many events
    double busy_ns = 0, memory_ns = 0;
  };
  struct Message {
    uint64_t bytes;
    double sent;
  };

  static size_t length_of(std::span<const Program> programs) {
    size_t all = 0;
    for (const Program& program : programs) {
      size_t trips = 1;
      for (const Instruction& one : program.instructions) {
        if (one.kind == Kind::kLoop) trips = one.trips;
        all += trips;
        if (one.kind == Kind::kEndLoop) trips = 1;
      }
    }
    return all;
  }

  int core_number(int rank) const {
    const int host = topology_.host_of(rank);
    return host * topology_.cores + (rank - host * topology_.ranks_of_host()) % topology_.cores;
  }
  Core& core_of(int rank) {
    if (cores_.empty()) cores_.resize(static_cast<size_t>(topology_.hosts * topology_.cores));
    return cores_[static_cast<size_t>(core_number(rank))];
  }

  // --- Memories ---

  void place_memories() {
    const Plan& plan = *call_.plan;
    for (int r = 0; r < n_; ++r) {
      const bool has_input = !plan.input_at_root || r == call_.binding.root;
      const bool has_output = !plan.output_at_root || r == call_.binding.root;
      const uint64_t in = has_input ? geometry_.size_of(plan.input, r) : 0;
      const uint64_t out = has_output ? geometry_.size_of(plan.output, r) : 0;
      const bool in_place = has_input && has_output && !is_by_pair(plan.input);
      const int first = add_memory(in_place ? std::max(in, out) : in);
      const int second = in_place ? first : add_memory(out);
      const uint64_t mine = geometry_.block(std::min(r, n_ - 1)).offset;
      const bool gathers = in_place && plan.output == Layout::kConcatenated;
      const bool scatters = in_place && plan.input == Layout::kConcatenated;
      spaces_[static_cast<size_t>(Space::kInput)].push_back({first, gathers ? mine : 0});
      spaces_[static_cast<size_t>(Space::kOutput)].push_back({second, scatters ? mine : 0});
      const Program& program = call_.programs[static_cast<size_t>(r)];
      // An eager call finds its slot again after depth_ calls.
      const int scratch = add_memory(program.scratch_bytes);
      for (int slot = 1; program.eager && slot < depth_; ++slot) add_memory(program.scratch_bytes);
      spaces_[static_cast<size_t>(Space::kScratch)].push_back({scratch, 0});
    }
  }

  int add_memory(uint64_t bytes) {
    const uint64_t finest = std::max<uint64_t>(kCacheLine, round_to_line(bytes / kMostCells));
    const uint64_t of_block = geometry_.longest_block() / (n_ > kFewRanks ? 1 : 8);
    const uint64_t natural = std::min<uint64_t>(call_.programs[0].chunk_bytes, of_block);
    return footprint_.add_memory(bytes, std::max(finest, round_to_line(natural)));
  }

  struct Window {
    int memory = 0;
    uint64_t offset = 0;
  };

  // --- Time ---

  bool same_core(int a, int b) const { return core_number(a) == core_number(b); }
  bool same_host(int a, int b) const { return topology_.host_of(a) == topology_.host_of(b); }

  // When `reader` sees what `writer` does at `when`.
  double seen(int writer, int reader, double when) const {
    if (!same_host(writer, reader)) return when + topology_.link.latency_ns;
    return same_core(writer, reader) ? when : when + topology_.signal_ns;
  }

  Core* next_core() {
    Core* next = nullptr;
    for (Core& core : cores_) {
      if (core.idle) wake(core);
      if (!core.idle && !finished(core) && (next == nullptr || core.now < next->now)) next = &core;
    }
    return next;
  }

  bool finished(int rank) const { return ranks_[static_cast<size_t>(rank)].call == calls_; }
  bool finished(const Core& core) const {
    return std::ranges::all_of(core.ranks, [&](int rank) { return finished(rank); });
  }

  // An idle core goes on when what one of its ranks waits for has happened.
  void wake(Core& core) {
    if (core.seen_events == events_) return;
    core.seen_events = events_;
    double earliest = kNever;
    size_t first = 0;
    for (size_t i = 0; i < core.ranks.size(); ++i) {
      const size_t turn = (core.current + i) % core.ranks.size();
      if (finished(core.ranks[turn])) continue;
      const double when = ready(core.ranks[turn]);
      if (when < earliest) earliest = when, first = turn;
    }
    if (earliest == kNever) return;
    core.now = std::max(core.now, earliest);
    change_to(core, first);
    core.idle = false;
  }

  void change_to(Core& core, size_t turn) {
    if (turn != core.current) core.now += topology_.yield_ns;
    core.current = turn;
  }

  // When the next instruction of `rank` need not wait any longer; kNever: that is not known yet.
  double ready(int rank) const {
    const Rank& state = ranks_[static_cast<size_t>(rank)];
    const auto call = static_cast<size_t>(state.call);
    switch (state.at) {
      case Rank::At::kSlot:
        return state.call < depth_ - 1
                   ? 0
                   : arrival(state.call - depth_ + 1, (rank + state.awaited) % n_, rank);
      case Rank::At::kArrive:
        return 0;
      case Rank::At::kAwaitAll:
        return arrival(state.call, (rank + state.awaited) % n_, rank);
      case Rank::At::kProgram:
        break;
    }
    const Program& program = call_.programs[static_cast<size_t>(rank)];
    if (state.instruction == program.instructions.size()) return 0;
    const Instruction& one = program.instructions[state.instruction];
    if (one.kind == Kind::kAwait) return arrival(state.call, one.peer, rank);
    if (one.kind == Kind::kWait) {
      if (state.iteration < one.lag) return 0;
      const uint64_t wanted = one.step + uint64_t{state.iteration - one.lag} * one.step_stride;
      const auto& raised = signals_[call][one.peer].raised;
      const auto found = std::ranges::lower_bound(raised, wanted, {}, &std::pair<uint64_t, double>::first);
      return found == raised.end() ? kNever : seen(one.peer, rank, found->second);
    }
    if (one.kind == Kind::kReceive && bytes_of(rank, program.operands[one.first]) > 0) {
      const auto found = messages_.find({one.peer, rank});
      if (found == messages_.end() || found->second.empty()) return kNever;
      return found->second.front().sent;
    }
    return 0;
  }

  double arrival(int call, int peer, int reader) const {
    if (n_ == 1) return 0;
    const double when = arrivals_[static_cast<size_t>(call)][static_cast<size_t>(peer)];
    // Between hosts each message says which call it belongs to, and no arrival travels: that a call begins once
    // all have begun it keeps calls apart, whose length is asked for, but costs nothing.
    return when == kNever || !same_host(peer, reader) ? when : seen(peer, reader, when);
  }

  // --- One instruction of the core's rank ---

  void step(Core& core) {
    const int rank = core.ranks[core.current];
    if (finished(rank) || ready(rank) > core.now) return give_way(core);
    Rank& state = ranks_[static_cast<size_t>(rank)];
    switch (state.at) {
      case Rank::At::kSlot:
        if (state.awaited == 1) core.now += topology_.call_ns;
        if (state.call >= depth_ - 1 && ++state.awaited < n_) return;
        state.awaited = 1;
        state.at = Rank::At::kArrive;
        return;
      case Rank::At::kArrive: {
        const bool eager = call_.programs[static_cast<size_t>(rank)].eager;
        if (!eager) arrive(core, rank);
        state.at = eager || n_ == 1 ? Rank::At::kProgram : Rank::At::kAwaitAll;
        return;
      }
      case Rank::At::kAwaitAll:
        look(core, (rank + state.awaited) % n_, rank);
        if (++state.awaited < n_) return;
        state.awaited = 1;
        state.at = Rank::At::kProgram;
        return;
      case Rank::At::kProgram:
        break;
    }
    execute(core, rank, state);
  }

  void give_way(Core& core) {
    for (size_t i = 1; i <= core.ranks.size(); ++i) {
      const size_t turn = (core.current + i) % core.ranks.size();
      if (finished(core.ranks[turn]) || ready(core.ranks[turn]) > core.now) continue;
      return change_to(core, turn);
    }
    core.idle = true;
    core.seen_events = 0;
    wake(core);
  }

  void arrive(Core& core, int rank) {
    double& when =
        arrivals_[static_cast<size_t>(ranks_[static_cast<size_t>(rank)].call)][static_cast<size_t>(rank)];
    if (when == kNever) when = core.now;
    ++events_;
  }

  void look(Core& core, int peer, int rank) {
    if (!same_core(peer, rank)) core.now += topology_.line_ns;
  }

  void execute(Core& core, int rank, Rank& state) {
    const Program& program = call_.programs[static_cast<size_t>(rank)];
    if (state.instruction == program.instructions.size()) {
      state.ends.push_back(core.now);
      ++state.call;
      state.at = Rank::At::kSlot;
      state.instruction = 0;
      return;
    }
    const Instruction& one = program.instructions[state.instruction];
    switch (one.kind) {
      case Kind::kArrive:
        arrive(core, rank);
        break;
      case Kind::kAwait:
        if (program.eager) look(core, one.peer, rank);  // the others have done so before the program
        break;
      case Kind::kWait:
        look(core, one.peer, rank);
        break;
      case Kind::kSignal:
        ++events_;
        signals_[static_cast<size_t>(state.call)][static_cast<size_t>(rank)].raised.emplace_back(
            one.step + uint64_t{state.iteration} * one.step_stride, core.now);
        break;
      case Kind::kLoop:
        state.loop = &one;
        state.iteration = 0;
        if (one.trips == 0) {
          while (program.instructions[state.instruction].kind != Kind::kEndLoop) ++state.instruction;
          state.loop = nullptr;
        }
        break;
      case Kind::kEndLoop:
        if (++state.iteration < state.loop->trips) {
          state.instruction = one.target + 1;
          return;
        }
        state.loop = nullptr;
        state.iteration = 0;
        break;
      default:
        move(core, rank, one);
    }
    ++state.instruction;
  }

  // --- Data ---

  uint64_t chunk_of(const Rank& state, const Instruction& one) const {
    return state.loop == nullptr ? 0 : state.iteration - one.lag;
  }
  bool skipped(const Rank& state, const Instruction& one) const {
    return state.loop != nullptr && (state.iteration < one.lag || chunk_of(state, one) >= state.loop->chunks);
  }

  uint64_t length_of(const Rank& state, const Instruction& one, const Operand& operand,
                     const Program& program) const {
    if (state.loop == nullptr) return operand.length;
    if (skipped(state, one)) return 0;
    const uint64_t begin = chunk_of(state, one) * program.chunk_bytes;
    return begin >= operand.length ? 0 : std::min<uint64_t>(operand.length - begin, program.chunk_bytes);
  }

  // Of the operand of the next instruction of `rank`.
  uint64_t bytes_of(int rank, const Operand& operand) const {
    const Program& program = call_.programs[static_cast<size_t>(rank)];
    const Rank& state = ranks_[static_cast<size_t>(rank)];
    return length_of(state, program.instructions[state.instruction], operand, program);
  }

  void move(Core& core, int rank, const Instruction& one) {
    const Rank& state = ranks_[static_cast<size_t>(rank)];
    const Program& program = call_.programs[static_cast<size_t>(rank)];
    const Operand* operands = &program.operands[one.first];
    const uint64_t bytes = length_of(state, one, operands[0], program);
    if (bytes == 0) return;
    if (one.kind == Kind::kCopy && is_same(operands[0], operands[1])) return;
    double cached = topology_.step_ns, memory = 0;
    double extra = 0;
    for (int i = 0; i < one.destinations + one.sources; ++i) {
      const bool stores = i < one.destinations;
      const Operand& operand = operands[i];
      const Window& window = spaces_[static_cast<size_t>(operand.space)][operand.owner];
      const uint64_t chunk = chunk_of(state, one);
      const uint64_t at = operand.base + (state.loop == nullptr ? 0
                                          : operand.ring > 0    ? chunk % operand.ring * operand.ring_stride
                                                                : chunk * program.chunk_bytes);
      const bool slot = operand.space == Space::kScratch && program.eager;
      const int number = window.memory + (slot ? state.call % depth_ : 0);
      const uint64_t begin = window.offset + at;
      const Footprint::Price price = stores
                                         ? footprint_.store(core_number(rank), number, begin, begin + bytes)
                                         : footprint_.load(core_number(rank), number, begin, begin + bytes);
      cached += price.cached_ns;
      memory += price.memory_bytes;
      if (!stores && one.kind == Kind::kReduce) cached += static_cast<double>(bytes) * topology_.reduce_ns;
      if (call_.by_system_call && operand.space != Space::kScratch && operand.owner != rank) {
        // A reduction reads piece by piece, a copy all at once.
        const double calls =
            one.kind == Kind::kReduce ? std::max(1.0, static_cast<double>(bytes) / (64 << 10)) : 1;
        extra += calls * topology_.read_call_ns + static_cast<double>(bytes) * topology_.read_byte_ns;
      }
    }
    if (one.kind == Kind::kSend || one.kind == Kind::kReceive) {
      // The other side of the copy: the channel's memory, which the peer has just read or written.
      cached += static_cast<double>(bytes) *
                (one.kind == Kind::kSend ? topology_.store_far_ns : topology_.load_far_ns);
    }
    const double from_memory =
        memory * std::min(topology_.ranks_of_host(), topology_.cores) / topology_.memory_bytes_per_ns;
    const double slower = std::max(cached + extra, from_memory);
    core.now += slower;
    if (state.call >= warm_) {
      core.busy_ns += cached + extra;
      core.memory_ns += std::max(0.0, slower - (cached + extra));
    }
    if (one.kind == Kind::kSend) send(core, rank, one.peer, bytes);
    if (one.kind == Kind::kReceive) receive(core, rank, one.peer, bytes);
  }

  bool is_same(const Operand& a, const Operand& b) const {
    const Window& to = spaces_[static_cast<size_t>(a.space)][a.owner];
    const Window& from = spaces_[static_cast<size_t>(b.space)][b.owner];
    return a.space != Space::kScratch && b.space != Space::kScratch && to.memory == from.memory &&
           to.offset + a.base == from.offset + b.base;
  }

  void send(Core& core, int rank, int peer, uint64_t bytes) {
    double sent = core.now;
    if (same_host(rank, peer)) {
      sent = seen(rank, peer, core.now);
      // What does not fit the channel goes in pieces, for which the two take turns.
      const auto pieces = static_cast<double>(bytes / kMessagePiece);
      sent += pieces * (same_core(rank, peer) ? 2 * topology_.yield_ns : topology_.signal_ns);
    } else {
      core.now += topology_.link.message_ns;
      double& out = links_out_[topology_.host_of(rank)];
      double& in = links_in_[topology_.host_of(peer)];
      const double begin = std::max({core.now, out, in - topology_.link.latency_ns});
      const double took = static_cast<double>(bytes) / topology_.link.bytes_per_ns;
      out = begin + took;
      in = begin + took + topology_.link.latency_ns;
      sent = in;
      if (ranks_[static_cast<size_t>(rank)].call >= warm_) carried_ns_[topology_.host_of(rank)] += took;
    }
    ++events_;
    messages_[{rank, peer}].push_back({bytes, sent});
  }

  void receive(Core& core, int rank, int peer, uint64_t bytes) {
    if (!same_host(rank, peer)) core.now += topology_.link.message_ns;
    (void)bytes;
    messages_[{peer, rank}].pop_front();
  }

  double ended(int call) const {
    double last = 0;
    for (const Rank& rank : ranks_) {
      if (rank.ends.size() <= static_cast<size_t>(call)) return kNever;
      last = std::max(last, rank.ends[static_cast<size_t>(call)]);
    }
    return last;
  }

  const PlayedCall& call_;
  const Topology& topology_;
  const int n_;
  const Geometry geometry_;
  Footprint footprint_;
  int depth_ = kEagerDepth;  // of the slots of eager calls
  int warm_ = 0, calls_ = 0;
  uint64_t events_ = 1;  // arrivals, signals and messages: what a rank may wait for
  std::array<std::vector<Window>, 3> spaces_;
  std::vector<Core> cores_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<double>> arrivals_;  // by call and rank
  std::vector<std::vector<Signals>> signals_;
  std::map<std::pair<int, int>, std::deque<Message>> messages_;
  std::map<int, double> links_out_, links_in_, carried_ns_;  // by host
};

}  // namespace

Played play(const PlayedCall& call, const Topology& topology) { return Player(call, topology).run(); }

}  // namespace collective_ops
