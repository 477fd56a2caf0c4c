#include "torch/profile.h"

#include <mutex>
#include <tuple>
#include <unordered_set>

namespace collective_ops::pytorch {
namespace {

std::vector<int64_t> splits_of(const std::vector<size_t>& counts) { return {counts.begin(), counts.end()}; }

}  // namespace

bool profiled() { return at::hasCallbacks(); }

const char* range_title(const std::string& backend, const char* title) {
  static std::mutex mutex;
  static auto* titles = new std::unordered_set<std::string>();
  const std::lock_guard lock(mutex);
  return titles->insert(backend + ":" + title).first->c_str();
}

CommsRecord::CommsRecord(const c10d::Backend& group, const std::vector<uint64_t>& global_ranks,
                         const Task& task, std::optional<int> peer) {
  if (!profiled()) return;
  const auto name = std::make_tuple(group.getGroupUid(), group.getGroupDesc());
  const auto sequence = std::make_tuple(static_cast<int64_t>(task.sequence), c10d::isP2POp(task.kind.type));
  const int64_t sent = elements_of(task.inputs), received = elements_of(task.outputs);
  const auto type = !task.inputs.empty()    ? task.inputs[0].scalar_type()
                    : !task.outputs.empty() ? task.outputs[0].scalar_type()
                                            : at::kByte;
  const int rank = peer && *peer >= 0 ? *peer : group.getRank();  // from any source: not known yet
  const int start = global_ranks.empty() ? 0 : static_cast<int>(global_ranks.front());
  const int stride = global_ranks.size() < 2 ? 1 : static_cast<int>(global_ranks[1] - global_ranks[0]);
  auto info = std::make_shared<torch::ParamCommsDebugInfo>(
      name, rank, task.kind.metadata, sent, received, type, splits_of(task.send_counts),
      splits_of(task.recv_counts), start, stride, group.getSize(), task.async);
  torch::maybeSetSequenceInfo(info, sequence);
  info_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO, info);
  function_.emplace(at::RecordScope::FUNCTION);
  if (!function_->isActive()) return;
  std::vector<c10::IValue> inputs{task.inputs,
                                  sequence,
                                  name,
                                  rank,
                                  std::string(task.kind.metadata),
                                  splits_of(task.send_counts),
                                  splits_of(task.recv_counts),
                                  start,
                                  stride,
                                  group.getSize(),
                                  task.async};
  function_->before(at::kParamCommsCallName, c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
}

}  // namespace collective_ops::pytorch
