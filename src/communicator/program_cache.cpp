#include "communicator/program_cache.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "algorithms/algorithms.h"

namespace collective_ops {
namespace {

constexpr size_t kMostPrograms = 1024;

// Whether partial results can be combined further: a 64-bit sum for an average has no room in them, and
// factors belong to ranks.
bool can_be_partial(const Call& call) {
  if (!reduces(call.collective)) return true;
  return call.op != ReduceOp::kPreMulSum && !(call.op == ReduceOp::kAvg && call.type <= DataType::kUInt64);
}

uint32_t fingerprint(const PlanNames& names) {
  const size_t hash = std::hash<std::string>()(
      fmt::format("{} {} {} {} {}", names.eager, names.push, names.direct, names.read, names.staged));
  return static_cast<uint32_t>(hash) | 1;
}

// What reports say of a program, summed over its data statements.
void sum_bytes(const Program& program, int rank, PreparedProgram& prepared) {
  for (const Instruction& instruction : program.instructions) {
    const bool copies = instruction.kind == Instruction::Kind::kCopy;
    if (!copies && instruction.kind != Instruction::Kind::kReduce) continue;
    const int destinations = copies ? 1 : instruction.destinations;
    const int sources = copies ? 1 : instruction.sources;
    bool staging = false;
    for (int i = 0; i < destinations + sources; ++i) {
      const Operand& operand = program.operands[instruction.first + static_cast<uint32_t>(i)];
      staging |= operand.space == Space::kScratch;
      if (operand.owner == rank) continue;
      (i < destinations ? prepared.written_bytes : prepared.read_bytes)[operand.owner] += operand.length;
    }
    if (copies && staging) prepared.copied_bytes += program.operands[instruction.first].length;
  }
}

}  // namespace

const std::vector<std::string>& algorithm_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Algorithm& algorithm : algorithms()) {
      const std::string name(algorithm.name);
      if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
    }
    all.emplace_back(kPieces);
    return all;
  }();
  return names;
}

uint8_t algorithm_number(std::string_view name) {
  const auto& names = algorithm_names();
  return static_cast<uint8_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

size_t ProgramCache::Hash::operator()(const Key& key) const {
  size_t hash = key.count * 0x9e3779b97f4a7c15ULL;
  hash ^= static_cast<size_t>(key.collective) << 1 ^ static_cast<size_t>(key.type) << 9 ^
          static_cast<size_t>(key.op) << 17 ^ static_cast<size_t>(key.root) << 25;
  for (size_t count : key.counts) hash = hash * 0x9e3779b97f4a7c15ULL + count;
  return hash * 0x9e3779b97f4a7c15ULL;
}

ProgramCache::ProgramCache(int rank, int world_size, int divisor, Forced forced)
    : rank_(rank),
      world_size_(world_size),
      divisor_(divisor > 0 ? divisor : world_size),
      forced_(std::move(forced)) {}

Result<PreparedCall*> ProgramCache::prepare(const Call& call) {
  if (exchanges_counts(call.collective)) {
    if (Status status = check_call(call, rank_, world_size_); !status.ok()) return status;
    const CallBytes own = bytes_of(call, rank_, world_size_);
    unbound_.payload_bytes = std::max(own.input, own.output);
    unbound_.needs_counts = true;
    return &unbound_;
  }
  Key key{call.collective, call.type, call.op, call.root, call.count, known_counts(call)};
  const bool surely_valid = (call.send != nullptr && call.recv != nullptr && call.send != call.recv) ||
                            call.collective == Collective::kBarrier ||
                            (call.send != nullptr && (call.collective == Collective::kAllReduce ||
                                                      call.collective == Collective::kBroadcast));
  if (last_ != nullptr && key == last_key_ && surely_valid) return last_;
  if (Status status = check_call(call, rank_, world_size_); !status.ok()) return status;
  return find_or_make(call, std::move(key));
}

Result<PreparedCall*> ProgramCache::bind(const Call& call, std::vector<size_t> counts) {
  Key key{call.collective, call.type, call.op, call.root, 0, std::move(counts)};
  if (bound_ && key == bound_key_) return &*bound_;
  bound_.reset();
  auto made = make(call, key.counts);
  if (!made.ok()) return made.status();
  bound_ = std::move(*made);
  bound_key_ = std::move(key);
  return &*bound_;
}

Result<PreparedCall*> ProgramCache::find_or_make(const Call& call, Key key) {
  auto found = calls_.find(key);
  if (found == calls_.end()) {
    auto made = make(call, key.counts);
    if (!made.ok()) return made.status();
    if (calls_.size() >= kMostPrograms) calls_.clear();
    found = calls_.emplace(key, std::move(*made)).first;
  }
  last_key_ = std::move(key);
  last_ = &found->second;
  return last_;
}

Result<PreparedCall> ProgramCache::make(const Call& call, const std::vector<size_t>& counts) const {
  PreparedCall prepared;
  for (int rank = 0; rank < world_size_; ++rank) {
    prepared.bytes.push_back(bytes_of(call, counts, rank, world_size_));
  }
  const CallBytes& mine = prepared.bytes[static_cast<size_t>(rank_)];
  prepared.payload_bytes = std::max(mine.input, mine.output);
  const size_t longest = counts.empty() ? call.count : *std::max_element(counts.begin(), counts.end());
  const size_t own = longest * size_of(call.type);

  const ChosenCall chosen{without_counts(call.collective), own, size_of(call.type), world_size_};
  // With counts that ranks exchange it is too late to compare what a plug-in chose.
  Forced forced = forced_;
  if (exchanges_counts(call.collective)) forced.plugin = nullptr;
  PlanNames names = choose(chosen, forced);
  if (forced.plugin != nullptr) prepared.choice = fingerprint(names);
  const Plan* staged_plan = find_plan(without_counts(call.collective), names.staged);
  if (staged_plan != nullptr && !staged_plan->rank_ordered && !can_be_partial(call)) {
    names = choose(chosen, {});
  }
  if (!names.eager.empty() && !needs_annex(call)) {
    auto eager = lower_named(call, counts, names.eager);
    if (!eager.ok()) return eager.status();
    if (eager->program.scratch_bytes <= shm::kEagerBytes) {
      prepared.eager = std::move(*eager);
      if (names.direct.empty()) return prepared;
      if (has_root(call.collective)) {
        // A rank's memory can stand for its slot where the plan does no more than look at it.
        const Plan* direct = find_plan(call.collective, names.direct);
        if (direct->writes_peer_output) return prepared;
        auto lowered = lower_named(call, counts, names.direct);
        if (!lowered.ok()) return lowered.status();
        prepared.direct = std::move(*lowered);
        return prepared;
      }
      // Only where every rank hears from all others can they find out together that all went direct.
      if (!prepared.eager->awaits_all) return prepared;
      names.read = {};
    }
  }
  auto staged = lower_named(call, counts, names.staged);
  if (!staged.ok()) return staged.status();
  prepared.staged = std::move(*staged);
  for (const auto& [name, program] :
       {std::pair(names.push, &prepared.push), std::pair(names.direct, &prepared.direct),
        std::pair(names.read, &prepared.read)}) {
    if (name.empty()) continue;
    auto lowered = lower_named(call, counts, name);
    if (!lowered.ok()) return lowered.status();
    *program = std::move(*lowered);
  }
  return prepared;
}

CallKernel ProgramCache::kernel_of(const Call& call, const Program& program) const {
  CallKernel kernel{.element_size = size_of(call.type), .divisor = divisor_};
  if (!reduces(call.collective)) return kernel;
  const bool sums_only = !program.rank_ordered && call.op == ReduceOp::kAvg;
  kernel.reduce = reduce_kernel(call.type, sums_only ? ReduceOp::kSum : call.op);
  return kernel;
}

Result<PreparedProgram> ProgramCache::lower_named(const Call& call, const std::vector<size_t>& counts,
                                                  std::string_view plan_name) const {
  const Plan* plan = find_plan(without_counts(call.collective), plan_name);
  if (plan == nullptr) {
    return Status(ErrorCode::kInternal,
                  fmt::format("there is no plan {} for {}", plan_name, name_of(call.collective)));
  }
  Binding binding{.rank = rank_,
                  .world_size = world_size_,
                  .root = call.root,
                  .element_size = size_of(call.type),
                  .count = call.count,
                  .counts = counts,
                  .chunk_bytes = chunk_bytes(*plan, world_size_, shm::kScratchBytes)};
  auto program = lower(*plan, binding);
  if (!program.ok()) return program.status();
  if (!program->eager && program->scratch_bytes > shm::kScratchBytes) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "{} of {} elements by \"{}\" needs {} bytes of staging memory, more than the {} there are: "
            "that algorithm is for hosts, and on one host only for small calls",
            name_of(call.collective), call.count, plan->name, program->scratch_bytes, shm::kScratchBytes));
  }
  PreparedProgram prepared;
  prepared.read_bytes.resize(static_cast<size_t>(world_size_));
  prepared.written_bytes.resize(static_cast<size_t>(world_size_));
  sum_bytes(*program, rank_, prepared);
  prepared.kernel = kernel_of(call, *program);
  if (!program->rank_ordered && reduces(call.collective) && call.op == ReduceOp::kAvg) {
    prepared.final_division = reduce_kernel(call.type, ReduceOp::kAvg);
  }
  prepared.awaits_all =
      std::count_if(program->instructions.begin(), program->instructions.end(),
                    [](const auto& one) { return one.kind == Instruction::Kind::kAwait; }) == world_size_ - 1;
  prepared.program = std::move(*program);
  prepared.algorithm = algorithm_number(plan->name);
  return prepared;
}

}  // namespace collective_ops
