// The sum of sparse tensors: everybody gathers everybody's indices and values, and adds them up.
#include "torch/attempt.h"
#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

constexpr Kind kSparseAllReduce{"sparse_all_reduce", "allreduce_sparse", c10d::OpType::_ALLREDUCE_SPARSE};

// Both are contiguous.
Call gather_call(const at::Tensor& own, const at::Tensor& all, const std::vector<size_t>& counts) {
  Call call;
  call.collective = Collective::kAllGatherV;
  call.type = moved_type(own).type;
  call.send = own.data_ptr();
  call.recv = all.data_ptr();
  call.recv_counts = counts;
  return call;
}

// Of each rank: dimensions, then the number of entries.
std::vector<int64_t> gather_shapes(Communicator& communicator, const at::Tensor& tensor,
                                   std::chrono::milliseconds timeout) {
  const std::array<int64_t, 3> own{tensor.sparse_dim(), tensor.dense_dim(), tensor._nnz()};
  std::vector<int64_t> all(own.size() * static_cast<size_t>(communicator.world_size()));
  Call call{Collective::kAllGather, own.data(), all.data(), own.size(), DataType::kInt64};
  call.timeout = timeout;
  const Interruptible here;
  check(communicator.run(call));
  return all;
}

}  // namespace

WorkPtr ProcessGroupCollectiveOps::allreduce_sparse(TensorList& tensors,
                                                    const c10d::AllreduceOptions& options) {
  const auto communicator = this->communicator();
  const auto timeout = timeout_of(options.timeout);
  at::Tensor own;
  Task task;
  {
    Attempt attempt(*this);
    TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].layout() == at::kSparse,
                      "all_reduce: requires one sparse tensor in COO format");
    TORCH_CHECK_VALUE(options.reduceOp.op_ == c10d::ReduceOp::SUM,
                      "all_reduce: sparse tensors are only added up (ReduceOp.SUM)");
    own = tensors[0].coalesce();
    task.kind = kSparseAllReduce;
    task.call.type = reduced_type(own, ReduceOp::kSum, "all_reduce").type;
  }
  const std::vector<int64_t> shapes = gather_shapes(*communicator, own, timeout);
  std::vector<size_t> index_counts, value_counts;
  int64_t entries = 0;
  int64_t elements_each = 1;
  for (int64_t d = own.sparse_dim(); d < own.dim(); ++d) elements_each *= own.size(d);
  for (size_t rank = 0; rank < static_cast<size_t>(size_); ++rank) {
    if (shapes[3 * rank] != own.sparse_dim() || shapes[3 * rank + 1] != own.dense_dim()) {
      raise({ErrorCode::kInvalidArgument,
             c10::str("all_reduce: rank ", rank, "'s sparse tensor has ", shapes[3 * rank], " sparse and ",
                      shapes[3 * rank + 1], " dense dimensions, this rank's ", own.sparse_dim(), " and ",
                      own.dense_dim())});
    }
    const int64_t count = shapes[3 * rank + 2];
    index_counts.push_back(static_cast<size_t>(count * own.sparse_dim()));
    value_counts.push_back(static_cast<size_t>(count * elements_each));
    entries += count;
  }
  // One entry's coordinates one behind the other, so that ranks' parts can be joined.
  const at::Tensor indices = own.indices().t().contiguous();
  const at::Tensor all_indices = at::empty({entries, own.sparse_dim()}, indices.options());
  Call call = gather_call(indices, all_indices, index_counts);
  call.timeout = timeout;
  {
    const Interruptible here;
    check(communicator->run(call));
  }
  std::vector<int64_t> shape(own.values().sizes().vec());
  shape[0] = entries;
  const at::Tensor all_values = at::empty(shape, own.values().options());
  task.call = gather_call(own.values().contiguous(), all_values, value_counts);
  task.recv_counts = value_counts;
  task.input = Operand(own.values().contiguous(), Use::kRead);
  task.output = Operand(all_values, Use::kWrite);
  task.inputs = task.outputs = tensors;
  task.timeout = options.timeout;
  task.async = false;
  Attempt attempt(*this);
  WorkPtr work = attempt.issue(std::move(task));
  const at::AutoDispatchBelowADInplaceOrView plain_memory;
  tensors[0].copy_(at::sparse_coo_tensor(all_indices.t(), all_values, own.sizes(), own.options()).coalesce());
  return work;
}

}  // namespace collective_ops::pytorch
