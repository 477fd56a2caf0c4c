#include "communicator/executor.h"

#include <algorithm>
#include <span>
#include <utility>

#include "transport/shm/copy.h"

namespace collective_ops {
namespace {

// A counter's value: the call in the upper bits, so that a rank that is further always counts as there.
uint64_t progress_value(uint64_t sequence, uint64_t step) { return sequence << 24 | step; }

// Large enough that a system call is cheap beside its copy; n of them fit the cache. Elements are not split:
// every type's size divides it.
constexpr size_t kRemotePiece = 64 << 10;

// Of what all ranks copy into callers' memory: from here on it is written past the caches, which it would not
// stay in. Measured: 1.3 to 1.6 times as fast from here, no difference below.
constexpr uint64_t kStreamingFrom = uint64_t{64} << 20;

}  // namespace

struct Executor::Frame {
  const Program& program;
  const CallMemory& memory;
  const CallKernel& kernel;
  uint64_t sequence;
  bool streaming;
  bool looping = false;
  uint64_t iteration = 0;
  uint64_t chunks = 0;
};

Executor::Executor(const shm::GroupMemory& memory, int rank, shm::Waiter& waiter, CallHost& host,
                   MessagePort& port)
    : shared_(memory), rank_(rank), waiter_(waiter), host_(host), port_(port) {
  destinations_.reserve(static_cast<size_t>(memory.world_size()));
  sources_.reserve(static_cast<size_t>(memory.world_size()));
}

Executor::Piece Executor::piece_of(const Operand& operand, const Frame& frame, uint64_t chunk) {
  std::byte* base = frame.memory.base(operand.space, operand.owner) + operand.base;
  const bool remote = operand.space != Space::kScratch && frame.memory.remote[operand.owner] != 0;
  if (!frame.looping) return {base, operand.length, remote};
  const uint64_t chunk_bytes = frame.program.chunk_bytes;
  const uint64_t begin = chunk * chunk_bytes;
  const uint64_t length = begin >= operand.length ? 0 : std::min(operand.length - begin, chunk_bytes);
  base += operand.ring > 0 ? (chunk % operand.ring) * operand.ring_stride : begin;
  return {base, length, remote};
}

bool Executor::run(const Program& program, const CallMemory& memory, const CallKernel& kernel,
                   uint64_t sequence) {
  const bool streaming = program.placed_bytes * static_cast<uint64_t>(shared_.world_size()) >= kStreamingFrom;
  Frame frame{program, memory, kernel, sequence, streaming};
  const auto& instructions = program.instructions;
  for (size_t at = 0; at < instructions.size(); ++at) {
    const Instruction& instruction = instructions[at];
    if (instruction.kind == Instruction::Kind::kLoop) {
      frame.looping = true;
      frame.iteration = 0;
      frame.chunks = instruction.chunks;
      if (instruction.trips == 0) {  // nothing to do: on to behind the matching end
        while (instructions[at].kind != Instruction::Kind::kEndLoop) ++at;
        frame.looping = false;
      }
    } else if (instruction.kind == Instruction::Kind::kEndLoop) {
      if (++frame.iteration < instructions[instruction.target].trips) {
        at = instruction.target;
      } else {
        frame.looping = false;
        frame.iteration = 0;
      }
    } else if (!execute(instruction, frame)) {
      if (std::exchange(sends_, false)) port_.drop();
      return false;
    } else if (steps_ != nullptr) {
      note(instruction, frame);
    }
  }
  return !std::exchange(sends_, false) || port_.flush();
}

void Executor::finish(uint64_t sequence) {
  waiter_.raise(shared_.state(rank_).progress, progress_value(sequence, kMaxStep));
}

bool Executor::execute(const Instruction& instruction, Frame& frame) {
  using Kind = Instruction::Kind;
  const bool lagging = frame.iteration < instruction.lag;
  switch (instruction.kind) {
    case Kind::kArrive:
      host_.arrive();
      return true;
    case Kind::kAwait:
      return host_.await(instruction.peer);
    case Kind::kSignal: {
      const uint64_t step = instruction.step + frame.iteration * instruction.step_stride;
      waiter_.raise(shared_.state(rank_).progress, progress_value(frame.sequence, step));
      return true;
    }
    case Kind::kWait: {
      if (lagging) return true;
      const uint64_t step = instruction.step + (frame.iteration - instruction.lag) * instruction.step_stride;
      return waiter_.until_progress(instruction.peer, progress_value(frame.sequence, step));
    }
    default:
      break;
  }
  if (lagging || (frame.looping && frame.iteration - instruction.lag >= frame.chunks)) return true;
  const Operand& first = frame.program.operands[instruction.first];
  const Piece piece = piece_of(first, frame, frame.iteration - instruction.lag);
  switch (instruction.kind) {
    case Kind::kCopy:
      if (sends_) port_.keep(piece.data, piece.bytes);
      return copy(instruction, frame);
    case Kind::kReduce:
      if (sends_) port_.keep(piece.data, piece.bytes);
      return reduce(instruction, frame);
    case Kind::kSend:
    case Kind::kReceive:
      return piece.bytes == 0 || message(instruction, piece);
    default:
      return true;
  }
}

void Executor::record_steps(CallSteps* steps) {
  steps_ = steps;
  if (steps != nullptr) waited_ns_.assign(static_cast<size_t>(shared_.world_size()), 0);
}

// The instruction has just been executed.
void Executor::note(const Instruction& instruction, const Frame& frame) {
  using Kind = Instruction::Kind;
  const bool active = frame.iteration >= instruction.lag &&
                      (!frame.looping || frame.iteration - instruction.lag < frame.chunks);
  const uint64_t chunk = frame.iteration - instruction.lag;
  const std::span operands(frame.program.operands);
  switch (instruction.kind) {
    case Kind::kAwait:
    case Kind::kWait:
      note_wait(instruction.peer);
      break;
    case Kind::kCopy:
      if (active) note_move(StepKind::kCopy, operands.subspan(instruction.first, 2), frame, chunk);
      break;
    case Kind::kReduce: {
      const size_t count = size_t{instruction.destinations} + instruction.sources;
      if (active) note_move(StepKind::kReduce, operands.subspan(instruction.first, count), frame, chunk);
      break;
    }
    case Kind::kSend:
    case Kind::kReceive: {
      const uint64_t bytes = active ? piece_of(operands[instruction.first], frame, chunk).bytes : 0;
      if (bytes == 0) break;
      const uint16_t one[] = {instruction.peer};
      const int64_t waited = waiter_.waited_ns()[instruction.peer];
      const int64_t before = std::exchange(waited_ns_[instruction.peer], waited);
      steps_->note(instruction.kind == Kind::kSend ? StepKind::kSend : StepKind::kReceive, one, bytes,
                   waited - before);
      break;
    }
    default:
      break;
  }
}

// Between this rank and those whose memory the operands lie in; else inside of its own.
void Executor::note_move(StepKind kind, std::span<const Operand> operands, const Frame& frame,
                         uint64_t chunk) {
  step_peers_.clear();
  uint64_t bytes = 0, own = 0;
  for (const Operand& operand : operands) {
    const Piece piece = piece_of(operand, frame, chunk);
    own = piece.bytes;
    if (operand.owner == rank_) continue;
    bytes += piece.bytes;
    if (std::find(step_peers_.begin(), step_peers_.end(), operand.owner) == step_peers_.end())
      step_peers_.push_back(operand.owner);
  }
  if (own == 0) return;
  if (step_peers_.empty()) {
    step_peers_.push_back(static_cast<uint16_t>(rank_));
    bytes = own;
  }
  steps_->note(kind, step_peers_, bytes);
}

bool Executor::message(const Instruction& instruction, Piece piece) {
  if (instruction.kind == Instruction::Kind::kSend) {
    sends_ = true;
    return port_.send(instruction.peer, piece.data, piece.bytes);
  }
  if (sends_) port_.keep(piece.data, piece.bytes);
  return port_.receive(instruction.peer, piece.data, piece.bytes);
}

bool Executor::copy(const Instruction& instruction, Frame& frame) {
  const uint64_t chunk = frame.iteration - instruction.lag;
  const Operand& source = frame.program.operands[instruction.first + 1];
  const Operand& destination = frame.program.operands[instruction.first];
  const Piece to = piece_of(destination, frame, chunk);
  const Piece from = piece_of(source, frame, chunk);
  if (from.remote) return host_.read_peer(source.owner, from.data, to.data, to.bytes);
  if (to.data == from.data) return true;
  if (frame.streaming && destination.space != Space::kScratch) {
    shm::copy_away(to.data, from.data, to.bytes);
  } else {
    shm::copy_across(to.data, from.data, to.bytes);
  }
  return true;
}

bool Executor::reduce(const Instruction& instruction, Frame& frame) {
  const uint64_t chunk = frame.iteration - instruction.lag;
  const Operand* operand = &frame.program.operands[instruction.first];
  const size_t bytes = piece_of(*operand, frame, chunk).bytes;
  if (bytes == 0) return true;
  destinations_.clear();
  sources_.clear();
  bool remote = false;
  for (int i = 0; i < instruction.destinations; ++i) {
    destinations_.push_back(piece_of(*operand++, frame, chunk).data);
  }
  for (int i = 0; i < instruction.sources; ++i) {
    const Piece piece = piece_of(*operand++, frame, chunk);
    sources_.push_back(piece.data);
    remote |= piece.remote;
  }
  if (remote) return reduce_remote(instruction, frame, bytes);
  frame.kernel.reduce({.destinations = destinations_,
                       .sources = sources_,
                       .count = bytes / frame.kernel.element_size,
                       .divisor = frame.kernel.divisor,
                       .factors = frame.kernel.factors});
  return true;
}

// In pieces that stay in the cache, so that what was read of the peers is not written to memory.
bool Executor::reduce_remote(const Instruction& instruction, Frame& frame, size_t bytes) {
  const Operand* sources = &frame.program.operands[instruction.first + instruction.destinations];
  landing_.resize(kRemotePiece * instruction.sources);
  std::vector<void*> to = destinations_;
  std::vector<const void*> from = sources_;
  for (size_t at = 0; at < bytes; at += kRemotePiece) {
    const size_t piece = std::min(kRemotePiece, bytes - at);
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<std::byte*>(destinations_[i]) + at;
    for (size_t i = 0; i < from.size(); ++i) {
      const auto* source = static_cast<const std::byte*>(sources_[i]) + at;
      from[i] = source;
      if (frame.memory.remote[sources[i].owner] == 0) continue;
      std::byte* landing = landing_.data() + i * kRemotePiece;
      if (!host_.read_peer(sources[i].owner, source, landing, piece)) return false;
      from[i] = landing;
    }
    frame.kernel.reduce({.destinations = to,
                         .sources = from,
                         .count = piece / frame.kernel.element_size,
                         .divisor = frame.kernel.divisor,
                         .factors = frame.kernel.factors});
  }
  return true;
}

}  // namespace collective_ops
