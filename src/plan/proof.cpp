#include "plan/proof.h"

#include <vector>

#include "plan/machine.h"

namespace collective_ops {

Status prove(std::span<const ProofCall> calls, const Schedule& schedule) {
  if (calls.empty()) return {};
  for (const ProofCall& call : calls) {
    if (call.binding.world_size != calls[0].binding.world_size) {
      return Status(ErrorCode::kInvalidArgument, "proof: calls of groups of different sizes");
    }
    Binding binding = call.binding;
    binding.rank = 0;
    if (auto program = lower(*call.plan, binding); !program.ok()) return program.status();
  }
  proof::Machine machine(calls);
  if (Status status = machine.prepare(); !status.ok()) return status;
  return machine.run(schedule);
}

Status prove(const Plan& plan, const Binding& binding) {
  const int repeats = plan.eager ? kEagerDepth + 2 : 3;
  std::vector<ProofCall> calls;
  for (int i = 0; i < repeats; ++i) calls.push_back({&plan, binding, i % 2 == 1});
  using Order = Schedule::Order;
  for (const Schedule& schedule :
       {Schedule{Order::kForward}, Schedule{Order::kBackward},
        Schedule{Order::kOneSlow, static_cast<uint64_t>(binding.root)}, Schedule{Order::kRandom, 1}}) {
    if (Status status = prove(calls, schedule); !status.ok()) return status;
  }
  return {};
}

}  // namespace collective_ops
