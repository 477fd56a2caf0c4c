// Collectives that move elements as they are, and the barriers.
#include <numeric>

#include "torch/attempt.h"
#include "torch/coalescing.h"
#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

constexpr Kind kBroadcast{"broadcast", "broadcast", c10d::OpType::BROADCAST};
constexpr Kind kAllGather{"all_gather", "all_gather", c10d::OpType::ALLGATHER};
constexpr Kind kAllGatherBase{"_all_gather_base", "_allgather_base", c10d::OpType::_ALLGATHER_BASE};
constexpr Kind kAllGatherCoalesced{"all_gather_into_tensor_coalesced", "allgather_into_tensor_coalesced",
                                   c10d::OpType::ALLGATHER_COALESCED};
constexpr Kind kGather{"gather", "gather", c10d::OpType::GATHER};
constexpr Kind kScatter{"scatter", "scatter", c10d::OpType::SCATTER};
constexpr Kind kAllToAll{"all_to_all", "all_to_all", c10d::OpType::ALLTOALL};
constexpr Kind kAllToAllBase{"all_to_all", "all_to_allv", c10d::OpType::ALLTOALL_BASE};
constexpr Kind kBarrier{"barrier", "barrier", c10d::OpType::BARRIER};

template <typename Options>
Task task_of(const Kind& kind, const Options& options, Collective collective) {
  Task task;
  task.kind = kind;
  task.timeout = options.timeout;
  task.async = options.asyncOp;
  task.call.collective = collective;
  return task;
}

// The tensors of the one list that c10d's signature wraps, one for each rank.
TensorList& parts_of(std::vector<TensorList>& lists, int size, const char* call) {
  TORCH_CHECK_VALUE(lists.size() == 1 && lists[0].size() == static_cast<size_t>(size), call,
                    ": requires one list with a tensor for each of ", size, " ranks, got ",
                    lists.empty() ? 0 : lists[0].size());
  return lists[0];
}

void check_own_part(const TensorList& parts, int rank, const at::Tensor& own, const char* call) {
  const int64_t size = parts[static_cast<size_t>(rank)].numel();
  TORCH_CHECK_VALUE(size == own.numel(), call, ": invalid tensor size: this rank's tensor has ", own.numel(),
                    " elements, its place in the list ", size);
}

// Elements to or from each rank, for splits of the first dimension; empty: equal parts.
std::vector<size_t> split_counts(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size,
                                 const ElementType& type, const char* which) {
  TORCH_CHECK_VALUE(tensor.dim() > 0, "all_to_all_single: the ", which, " tensor has no dimension to split");
  const int64_t rows = tensor.size(0);
  const auto ranks = static_cast<size_t>(size);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, "all_to_all_single: dim 0 of the ", which, " tensor (", rows,
                      ") does not divide equally among ", size, " ranks; give split sizes");
    return std::vector<size_t>(ranks, type.count(tensor.numel() / size));
  }
  TORCH_CHECK_VALUE(splits.size() == ranks, "all_to_all_single: ", splits.size(), " ", which,
                    " split sizes for ", size, " ranks");
  int64_t sum = 0;
  for (const int64_t split : splits) {
    TORCH_CHECK_VALUE(split >= 0, "all_to_all_single: a negative ", which, " split size: ", split);
    sum += split;
  }
  TORCH_CHECK_VALUE(sum == rows, "all_to_all_single: ", which, " split sizes add up to ", sum,
                    ", and dim 0 of the tensor is ", rows);
  std::vector<size_t> counts;
  for (const int64_t split : splits)
    counts.push_back(type.count(rows == 0 ? 0 : tensor.numel() / rows * split));
  return counts;
}

}  // namespace

WorkPtr ProcessGroupCollectiveOps::broadcast(TensorList& tensors, const c10d::BroadcastOptions& options) {
  Attempt attempt(*this);
  at::Tensor& tensor = single(tensors, "broadcast");
  TORCH_CHECK_VALUE(options.rootTensor == 0, "broadcast: invalid root tensor: ", options.rootTensor);
  Task task = task_of(kBroadcast, options, Collective::kBroadcast);
  task.call.root = attempt.root(options.rootRank, "broadcast");
  const ElementType type = moved_type(tensor);
  task.call.type = type.type;
  task.call.count = type.count(tensor.numel());
  task.output = Operand(tensor, task.call.root == rank_ ? Use::kRead : Use::kWrite);
  task.in_place = true;
  task.inputs = task.outputs = tensors;
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::allgather(std::vector<TensorList>& outputs, TensorList& inputs,
                                             const c10d::AllgatherOptions& options) {
  Attempt attempt(*this);
  at::Tensor& input = single(inputs, "all_gather");
  TensorList& parts = parts_of(outputs, size_, "all_gather");
  check_same_type(parts, input, "all_gather");
  check_own_part(parts, rank_, input, "all_gather");
  const bool even = all_of_size(parts, input.numel());
  Task task = task_of(kAllGather, options, even ? Collective::kAllGather : Collective::kAllGatherV);
  const ElementType type = moved_type(input);
  task.call.type = type.type;
  task.call.count = type.count(input.numel());
  if (!even) task.recv_counts = counts_of(parts, type);
  task.input = Operand(input, Use::kRead);
  task.output = Operand(parts, Use::kWrite);
  task.inputs = inputs;
  task.outputs = parts;
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::AllgatherOptions& options) {
  Attempt attempt(*this);
  check_dense(input, "all_gather_into_tensor");
  check_same_type({output}, input, "all_gather_into_tensor");
  TORCH_CHECK_VALUE(
      output.numel() == input.numel() * size_,
      "all_gather_into_tensor: output tensor size must be equal to world_size times input tensor "
      "size: the output has ",
      output.numel(), " elements, the input ", input.numel(), ", and there are ", size_, " ranks");
  Task task = task_of(kAllGatherBase, options, Collective::kAllGather);
  const ElementType type = moved_type(input);
  task.call.type = type.type;
  task.call.count = type.count(input.numel());
  task.input = Operand(input, Use::kRead);
  task.output = Operand(output, Use::kWrite);
  task.inputs = {input};
  task.outputs = {output};
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::allgather_coalesced(std::vector<TensorList>& outputs, TensorList& inputs,
                                                       const c10d::AllgatherOptions& options) {
  Attempt attempt(*this);
  TORCH_CHECK_VALUE(!inputs.empty(), "all_gather_coalesced: requires non-empty input tensor list");
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_),
                    "all_gather_coalesced: output lists should be equal to world size: ", outputs.size(),
                    " lists, ", size_, " ranks");
  for (const TensorList& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(),
                      "all_gather_coalesced: invalid output size: ", list.size(), " tensors, expected ",
                      inputs.size());
    for (size_t i = 0; i < list.size(); ++i) {
      check_same_type({list[i]}, inputs[i], "all_gather_coalesced");
      TORCH_CHECK_VALUE(list[i].numel() == inputs[i].numel(),
                        "all_gather_coalesced: invalid size of output tensor ", i);
    }
  }
  std::vector<Task> tasks;
  for (const auto& indices : calls_for(inputs, size_, "all_gather_coalesced")) {
    Task task = task_of(kAllGatherCoalesced, options, Collective::kAllGather);
    task.inputs = select(inputs, indices);
    for (const TensorList& list : outputs) {
      for (const size_t index : indices) task.outputs.push_back(list[index]);
    }
    const ElementType type = moved_type(task.inputs[0]);
    task.call.type = type.type;
    task.call.count = type.count(elements_of(task.inputs));
    task.input = Operand(task.inputs, Use::kRead);
    task.output = Operand(task.outputs, Use::kWrite);
    tasks.push_back(std::move(task));
  }
  TensorList results;
  for (const TensorList& list : outputs) results.insert(results.end(), list.begin(), list.end());
  return attempt.issue(std::move(tasks), results);
}

WorkPtr ProcessGroupCollectiveOps::allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                                                   const c10d::AllgatherOptions& options) {
  constexpr const char* kCall = "all_gather_into_tensor_coalesced";
  Attempt attempt(*this);
  check_pairs(outputs, inputs, size_, kCall);
  std::vector<Task> tasks;
  for (const auto& indices : calls_for(inputs, size_, kCall)) {
    Task task = task_of(kAllGatherCoalesced, options, Collective::kAllGather);
    task.inputs = select(inputs, indices);
    const ElementType type = moved_type(task.inputs[0]);
    task.call.type = type.type;
    task.call.count = type.count(elements_of(task.inputs));
    task.input = Operand(task.inputs, Use::kRead);
    task.output = Operand(select(outputs, indices), Use::kWrite, size_);
    tasks.push_back(std::move(task));
  }
  return attempt.issue(std::move(tasks), outputs);
}

WorkPtr ProcessGroupCollectiveOps::gather(std::vector<TensorList>& outputs, TensorList& inputs,
                                          const c10d::GatherOptions& options) {
  Attempt attempt(*this);
  at::Tensor& input = single(inputs, "gather");
  // The root alone knows whether parts differ in size, so all make the call that allows it.
  Task task = task_of(kGather, options, Collective::kGatherV);
  task.call.root = attempt.root(options.rootRank, "gather");
  const ElementType type = moved_type(input);
  task.call.type = type.type;
  task.call.count = type.count(input.numel());
  task.input = Operand(input, Use::kRead);
  task.inputs = inputs;
  if (task.call.root == rank_) {
    TensorList& parts = parts_of(outputs, size_, "gather");
    check_same_type(parts, input, "gather");
    check_own_part(parts, rank_, input, "gather");
    task.recv_counts = counts_of(parts, type);
    task.output = Operand(parts, Use::kWrite);
    task.outputs = parts;
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), "gather: requires empty output on non-root");
  }
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                                           const c10d::ScatterOptions& options) {
  Attempt attempt(*this);
  at::Tensor& output = single(outputs, "scatter");
  Task task = task_of(kScatter, options, Collective::kScatterV);
  task.call.root = attempt.root(options.rootRank, "scatter");
  const ElementType type = moved_type(output);
  task.call.type = type.type;
  task.call.count = type.count(output.numel());
  task.output = Operand(output, Use::kWrite);
  task.outputs = outputs;
  if (task.call.root == rank_) {
    TensorList& parts = parts_of(inputs, size_, "scatter");
    check_same_type(parts, output, "scatter");
    check_own_part(parts, rank_, output, "scatter");
    task.send_counts = counts_of(parts, type);
    task.input = Operand(parts, Use::kRead);
    task.inputs = parts;
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "scatter: requires empty input on non-root");
  }
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                 std::vector<int64_t>& output_splits,
                                                 std::vector<int64_t>& input_splits,
                                                 const c10d::AllToAllOptions& options) {
  Attempt attempt(*this);
  check_dense(input, "all_to_all_single");
  check_same_type({output}, input, "all_to_all_single");
  const ElementType type = moved_type(input);
  auto send_counts = split_counts(input, input_splits, size_, type, "input");
  auto recv_counts = split_counts(output, output_splits, size_, type, "output");
  const bool even = input_splits.empty() && output_splits.empty();
  Task task = task_of(kAllToAllBase, options, even ? Collective::kAllToAll : Collective::kAllToAllV);
  task.call.type = type.type;
  if (even) {
    TORCH_CHECK_VALUE(send_counts[0] == recv_counts[0],
                      "all_to_all_single: without split sizes input and output are of equal size; they have ",
                      input.numel(), " and ", output.numel(), " elements");
    task.call.count = send_counts[0];
  } else {
    task.send_counts = std::move(send_counts);
    task.recv_counts = std::move(recv_counts);
  }
  task.input = Operand(input, Use::kRead);
  task.output = Operand(output, Use::kWrite);
  task.inputs = {input};
  task.outputs = {output};
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::alltoall(TensorList& outputs, TensorList& inputs,
                                            const c10d::AllToAllOptions& options) {
  Attempt attempt(*this);
  const auto ranks = static_cast<size_t>(size_);
  TORCH_CHECK_VALUE(inputs.size() == ranks && outputs.size() == ranks, "all_to_all: lists of ", inputs.size(),
                    " and ", outputs.size(), " tensors for ", size_, " ranks");
  check_same_type(inputs, inputs[0], "all_to_all");
  check_same_type(outputs, inputs[0], "all_to_all");
  const ElementType type = moved_type(inputs[0]);
  Task task = task_of(kAllToAll, options, Collective::kAllToAllV);
  task.call.type = type.type;
  task.send_counts = counts_of(inputs, type);
  task.recv_counts = counts_of(outputs, type);
  task.input = Operand(inputs, Use::kRead);
  task.output = Operand(outputs, Use::kWrite);
  task.inputs = inputs;
  task.outputs = outputs;
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::barrier(const c10d::BarrierOptions& options) {
  Attempt attempt(*this);
  return attempt.issue(task_of(kBarrier, options, Collective::kBarrier));
}

}  // namespace collective_ops::pytorch
