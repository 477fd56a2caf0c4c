#include "communicator/across.h"

#include <utility>

#include <fmt/format.h>

#include "algorithms/algorithms.h"
#include "tuner/choose.h"

namespace collective_ops {
namespace {

constexpr size_t kMostPrograms = 256;

}  // namespace

Across::Across(HostLinks& links, const shm::GroupMemory& memory, int rank, int own_host)
    : links_(links),
      host_(own_host),
      waiter_(memory, rank, true, *this),
      executor_(memory, rank, waiter_, *this, *this),
      addresses_(0) {}

Result<Across::Prepared*> Across::prepare(const AcrossCall& call) {
  const Key key{call.collective, call.plan, call.type, call.op, call.root, call.count};
  auto found = prepared_.find(key);
  if (found != prepared_.end()) return &found->second;
  const size_t element = size_of(call.type);
  const Binding binding{.rank = host_,
                        .world_size = static_cast<int>(call.ranks.size()),
                        .root = call.root,
                        .element_size = element,
                        .count = call.count};
  const Plan* plan = find_plan(call.collective, call.plan);
  if (plan == nullptr || !is_of_messages(*plan))
    return Status(ErrorCode::kInternal, fmt::format("there is no plan {} of messages", call.plan));
  auto program = lower(*plan, binding);
  if (!program.ok()) return program.status();
  Prepared prepared{std::move(*program), {.element_size = element}};
  if (reduces(call.collective)) prepared.kernel.reduce = reduce_kernel(call.type, call.op);
  if (prepared_.size() >= kMostPrograms) prepared_.clear();
  return &prepared_.emplace(key, std::move(prepared)).first->second;
}

Status Across::run(const AcrossCall& call) {
  auto prepared = prepare(call);
  if (!prepared.ok()) return prepared.status();
  const Program& program = (*prepared)->program;
  if (scratch_.empty()) {
    addresses_ = CallMemory(call.ranks.size());
    scratch_.resize(call.ranks.size());
  }
  const auto me = static_cast<size_t>(host_);
  scratch_[me] = scratch_memory_.get(program.scratch_bytes);
  addresses_.scratch = scratch_.data();
  addresses_.input[me] = static_cast<std::byte*>(const_cast<void*>(call.send));
  addresses_.output[me] = static_cast<std::byte*>(call.recv);
  ranks_ = call.ranks;
  if (executor_.run(program, addresses_, (*prepared)->kernel, 0)) return {};
  return links_.status();
}

}  // namespace collective_ops
