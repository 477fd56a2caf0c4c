// Collectives that combine elements.
#include "torch/attempt.h"
#include "torch/coalescing.h"
#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

constexpr Kind kAllReduce{"all_reduce", "allreduce", c10d::OpType::ALLREDUCE};
constexpr Kind kAllReduceCoalesced{"all_reduce", "allreduce_coalesced", c10d::OpType::ALLREDUCE_COALESCED};
constexpr Kind kReduce{"reduce", "reduce", c10d::OpType::REDUCE};
constexpr Kind kReduceScatter{"reduce_scatter", "reduce_scatter", c10d::OpType::REDUCE_SCATTER};
constexpr Kind kReduceScatterBase{"_reduce_scatter_base", "_reduce_scatter_base",
                                  c10d::OpType::_REDUCE_SCATTER_BASE};
constexpr Kind kReduceScatterCoalesced{"reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced",
                                       c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED};

template <typename Options>
Task task_of(const Kind& kind, const Options& options) {
  Task task;
  task.kind = kind;
  task.timeout = options.timeout;
  task.async = options.asyncOp;
  return task;
}

// Type, operation and factor; `elements` of one part.
void describe(Task& task, Collective collective, const at::Tensor& tensor, const Reduction& reduction,
              int64_t elements) {
  const ElementType type = reduced_type(tensor, reduction.op, task.kind.title);
  task.call.collective = collective;
  task.call.type = type.type;
  task.call.count = type.count(elements);
  task.call.op = reduction.op;
  task.call.factor = reduction.factor;
}

}  // namespace

WorkPtr ProcessGroupCollectiveOps::allreduce(TensorList& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].layout() == at::kSparse) return allreduce_sparse(tensors, options);
  Attempt attempt(*this);
  at::Tensor& tensor = single(tensors, "all_reduce");
  Task task = task_of(kAllReduce, options);
  describe(task, Collective::kAllReduce, tensor, reduction_of(options.reduceOp, "all_reduce"),
           tensor.numel());
  task.output = Operand(tensor, Use::kUpdate);
  task.in_place = true;
  task.inputs = task.outputs = tensors;
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::allreduce_coalesced(TensorList& tensors,
                                                       const c10d::AllreduceCoalescedOptions& options) {
  Attempt attempt(*this);
  TORCH_CHECK_VALUE(!tensors.empty(), "all_reduce: requires non-empty tensor list");
  const Reduction reduction = reduction_of(options.reduceOp, "all_reduce");
  std::vector<Task> tasks;
  for (const auto& indices : calls_for(tensors, 1, "all_reduce")) {
    Task task = task_of(kAllReduceCoalesced, options);
    task.inputs = select(tensors, indices);
    describe(task, Collective::kAllReduce, task.inputs[0], reduction, elements_of(task.inputs));
    task.output = Operand(task.inputs, Use::kUpdate);
    task.in_place = true;
    tasks.push_back(std::move(task));
  }
  return attempt.issue(std::move(tasks), tensors);
}

WorkPtr ProcessGroupCollectiveOps::reduce(TensorList& tensors, const c10d::ReduceOptions& options) {
  Attempt attempt(*this);
  at::Tensor& tensor = single(tensors, "reduce");
  TORCH_CHECK_VALUE(options.rootTensor == 0, "reduce: invalid root tensor: ", options.rootTensor);
  Task task = task_of(kReduce, options);
  task.call.root = attempt.root(options.rootRank, "reduce");
  describe(task, Collective::kReduce, tensor, reduction_of(options.reduceOp, "reduce"), tensor.numel());
  // Only the root's tensor changes.
  if (task.call.root == rank_) {
    task.output = Operand(tensor, Use::kUpdate);
    task.in_place = true;
  } else {
    task.input = Operand(tensor, Use::kRead);
  }
  task.inputs = task.outputs = tensors;
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::reduce_scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                                                  const c10d::ReduceScatterOptions& options) {
  Attempt attempt(*this);
  at::Tensor& output = single(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1 && inputs[0].size() == static_cast<size_t>(size_),
                    "reduce_scatter: invalid input tensor list: requires one list with a tensor for each of ",
                    size_, " ranks");
  check_same_type(inputs[0], output, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs[0][static_cast<size_t>(rank_)].numel() == output.numel(),
                    "reduce_scatter: invalid tensor size: the output has ", output.numel(),
                    " elements, this rank's tensor of the list ",
                    inputs[0][static_cast<size_t>(rank_)].numel());
  Task task = task_of(kReduceScatter, options);
  const bool even = all_of_size(inputs[0], output.numel());
  describe(task, even ? Collective::kReduceScatter : Collective::kReduceScatterV, output,
           reduction_of(options.reduceOp, "reduce_scatter"), output.numel());
  if (!even) task.send_counts = counts_of(inputs[0], {task.call.type, 1});
  task.input = Operand(inputs[0], Use::kRead);
  task.output = Operand(output, Use::kWrite);
  task.inputs = inputs[0];
  task.outputs = outputs;
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::ReduceScatterOptions& options) {
  Attempt attempt(*this);
  check_dense(output, "reduce_scatter_tensor");
  check_same_type({input}, output, "reduce_scatter_tensor");
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_,
                    "reduce_scatter_tensor: input tensor must be the same size as output size times world "
                    "size: the input has ",
                    input.numel(), " elements, the output ", output.numel(), ", and there are ", size_,
                    " ranks");
  Task task = task_of(kReduceScatterBase, options);
  describe(task, Collective::kReduceScatter, output, reduction_of(options.reduceOp, "reduce_scatter_tensor"),
           output.numel());
  task.input = Operand(input, Use::kRead);
  task.output = Operand(output, Use::kWrite);
  task.inputs = {input};
  task.outputs = {output};
  return attempt.issue(std::move(task));
}

WorkPtr ProcessGroupCollectiveOps::reduce_scatter_tensor_coalesced(
    TensorList& outputs, TensorList& inputs, const c10d::ReduceScatterOptions& options) {
  Attempt attempt(*this);
  check_pairs(inputs, outputs, size_, "reduce_scatter_tensor_coalesced");
  const Reduction reduction = reduction_of(options.reduceOp, "reduce_scatter_tensor_coalesced");
  std::vector<Task> tasks;
  for (const auto& indices : calls_for(outputs, size_, "reduce_scatter_tensor_coalesced")) {
    Task task = task_of(kReduceScatterCoalesced, options);
    task.inputs = select(inputs, indices);
    const TensorList parts = select(outputs, indices);
    describe(task, Collective::kReduceScatter, parts[0], reduction, elements_of(parts));
    task.input = Operand(task.inputs, Use::kRead, size_);
    task.output = Operand(parts, Use::kWrite);
    tasks.push_back(std::move(task));
  }
  return attempt.issue(std::move(tasks), outputs);
}

}  // namespace collective_ops::pytorch
