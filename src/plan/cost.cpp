#include "plan/cost.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "plan/play.h"

namespace collective_ops {
namespace {

using Kind = Instruction::Kind;

// What the instructions of one rank move.
struct Work {
  uint64_t copied = 0;
  uint64_t reduced = 0;
  uint64_t on_buffers = 0;  // of both, on inputs and outputs
  uint64_t on_scratch = 0;
};

// A loop moves chunk after chunk, in the end each operand's whole length.
Work work_of(const Program& program) {
  Work work;
  for (const Instruction& i : program.instructions) {
    const int operands = i.destinations + i.sources;
    for (int k = 0; k < operands; ++k) {
      const Operand& operand = program.operands[i.first + k];
      (i.kind == Kind::kReduce ? work.reduced : work.copied) += operand.length;
      (operand.space == Space::kScratch ? work.on_scratch : work.on_buffers) += operand.length;
      // Of a message, the other side of the copy into or out of the channel.
      if (i.kind == Kind::kSend || i.kind == Kind::kReceive) {
        work.copied += operand.length;
        work.on_scratch += operand.length;
      }
    }
  }
  return work;
}

// Waits that follow each other without work in between are one round: the peers raise their flags at about
// the same time. In loops over steps each step is one hop of a message, whoever makes it.
uint32_t rounds_of(const Program& program) {
  uint32_t rounds = 0, in_body = 0, trips = 1, lag = 0;
  bool waiting = false;
  for (const Instruction& i : program.instructions) {
    const bool waits = i.kind == Kind::kAwait || i.kind == Kind::kWait || i.kind == Kind::kReceive;
    if (waits && !waiting) {
      ++in_body;
      lag = i.lag;
    }
    waiting = waits;
    if (i.kind != Kind::kLoop && i.kind != Kind::kEndLoop) continue;
    rounds += in_body * (trips > lag ? trips - lag : 0);
    in_body = lag = 0;
    trips = i.kind == Kind::kLoop ? i.trips : 1;
  }
  return rounds + in_body;
}

// The longest way through a tree is not that of any single rank.
uint32_t hops_of(const Plan& plan, int n) {
  uint32_t hops = 0;
  for (const Loop& loop : plan.loops) {
    if (loop.over != Loop::Over::kSteps || loop.steps != Loop::Steps::kLog2) continue;
    for (int ranks = 1; ranks < n; ranks *= 2) ++hops;
  }
  return hops;
}

Status check(const Binding& call, const Topology& topology) {
  if (topology.ranks == call.world_size && topology.cores > 0 && topology.hosts > 0 &&
      topology.ranks % topology.hosts == 0) {
    return {};
  }
  return Status(
      ErrorCode::kInvalidArgument,
      fmt::format("cost of a call of {} ranks on {} ranks, {} cores and {} hosts: hosts have cores, and "
                  "as many ranks each",
                  call.world_size, topology.ranks, topology.cores, topology.hosts));
}

}  // namespace

Result<Cost> cost(const Plan& plan, const Binding& call, const Topology& topology, bool by_system_call) {
  if (Status status = check(call, topology); !status.ok()) return status;
  Binding binding = call;
  const int n = binding.world_size;
  Cost result;
  uint64_t on_buffers = 0, on_scratch = 0;
  std::vector<Program> programs;
  for (binding.rank = 0; binding.rank < n; ++binding.rank) {
    auto program = lower(plan, binding);
    if (!program.ok()) return program.status();
    const Work work = work_of(*program);
    result.copied_bytes += work.copied;
    result.reduced_bytes += work.reduced;
    on_buffers += work.on_buffers;
    on_scratch += work.on_scratch;
    result.rounds = std::max(result.rounds, rounds_of(*program));
    programs.push_back(std::move(*program));
  }
  // The arrival, then the hops.
  if (const uint32_t hops = hops_of(plan, n); hops > 0) result.rounds = 1 + hops;
  if (on_buffers > topology.shared_cache_bytes * topology.hosts) result.memory_bytes += on_buffers;
  if (programs[0].scratch_bytes * n > topology.shared_cache_bytes * topology.hosts) {
    result.memory_bytes += on_scratch;
  }
  const Played played = play({&plan, call, programs, by_system_call}, topology);
  result.core_ns = played.core_ns;
  result.memory_ns = played.memory_ns;
  result.link_ns = played.link_ns;
  result.latency_ns = std::max(0.0, played.total_ns - played.core_ns - played.memory_ns);
  return result;
}

}  // namespace collective_ops
