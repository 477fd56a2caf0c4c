// Messages between two ranks, alone and in batches.
#include <algorithm>

#include "torch/backend.h"
#include "torch/errors.h"
#include "torch/flight_recorder.h"
#include "torch/joined_work.h"
#include "torch/message_work.h"
#include "torch/profile.h"

namespace collective_ops::pytorch {
namespace {

constexpr Kind kSend{"send", "send", c10d::OpType::SEND};
constexpr Kind kRecv{"recv", "recv", c10d::OpType::RECV};
constexpr Kind kRecvAnySource{"recvAnySource", "recvAnysource", c10d::OpType::RECVANYSOURCE};

}  // namespace

WorkPtr ProcessGroupCollectiveOps::send(TensorList& tensors, int to, int tag) {
  Task task;
  task.kind = kSend;
  const at::Tensor& tensor = single(tensors, "send");
  task.input = Operand(tensor, Use::kRead);
  task.inputs = tensors;
  const ElementType type = moved_type(tensor);
  const Transfer transfer = Transfer::send(task.input.data(), type.count(tensor.numel()), type.type, to, tag);
  return post(std::move(task), transfer);
}

WorkPtr ProcessGroupCollectiveOps::recv(TensorList& tensors, int from, int tag) {
  return receive(kRecv, tensors, from, tag);
}

WorkPtr ProcessGroupCollectiveOps::recvAnysource(TensorList& tensors, int tag) {
  return receive(kRecvAnySource, tensors, kAnySource, tag);
}

WorkPtr ProcessGroupCollectiveOps::receive(const Kind& kind, TensorList& tensors, int from, int tag) {
  Task task;
  task.kind = kind;
  const at::Tensor& tensor = single(tensors, kind.title);
  task.output = Operand(tensor, Use::kWrite);
  task.inputs = task.outputs = tensors;
  const ElementType type = moved_type(tensor);
  const Transfer transfer =
      Transfer::receive(task.output.data(), type.count(tensor.numel()), type.type, from, tag);
  return post(std::move(task), transfer);
}

WorkPtr ProcessGroupCollectiveOps::post(Task task, Transfer transfer) {
  TORCH_CHECK_VALUE(transfer.tag >= 0, task.kind.title, ": tag must be nonnegative, got ", transfer.tag);
  TORCH_CHECK_VALUE(transfer.peer < size_ && (transfer.peer >= 0 || task.kind.type == kRecvAnySource.type),
                    task.kind.title, ": invalid rank ", transfer.peer, "; the group has ranks 0 to ",
                    size_ - 1);
  const auto communicator = this->communicator();
  transfer.timeout = timeout_of(c10d::kUnsetTimeout);
  task.sequence = ++message_sequence_;
  task.record = FlightRecorder::instance().issued(*this, options_->global_ranks_in_group, task,
                                                  *transfer.timeout, transfer.peer);
  const CommsRecord record(*this, options_->global_ranks_in_group, task, transfer.peer);
  const char* title = profiled() ? range_title(name_, task.kind.title) : nullptr;
  auto work = c10::make_intrusive<MessageWork>(rank_, std::move(task), transfer, title);
  const std::lock_guard lock(mutex_);
  if (coalescing_) {
    batch_.push_back(work);
  } else {
    work->started(communicator->start({&work->transfer(), 1})[0]);
    keep(work);
  }
  return work;
}

// With mutex_ held. The memory of a message must live until it is done, whether anybody holds its work or
// not.
void ProcessGroupCollectiveOps::keep(const c10::intrusive_ptr<MessageWork>& work) {
  if (kept_messages_.size() >= prune_at_) {
    kept_messages_.erase(std::remove_if(kept_messages_.begin(), kept_messages_.end(),
                                        [](const auto& kept) { return kept->isCompleted(); }),
                         kept_messages_.end());
    prune_at_ = 2 * kept_messages_.size() + 8;
  }
  kept_messages_.push_back(work);
}

void ProcessGroupCollectiveOps::startCoalescing() {
  const std::lock_guard lock(mutex_);
  coalescing_ = true;
  coalesced_.clear();
  batch_.clear();
}

WorkPtr ProcessGroupCollectiveOps::endCoalescing() {
  const auto communicator = this->communicator();
  const std::lock_guard lock(mutex_);
  coalescing_ = false;
  std::vector<WorkPtr> works = std::exchange(coalesced_, {});
  const auto batch = std::exchange(batch_, {});
  if (!batch.empty()) {
    std::vector<Transfer> transfers;
    for (const auto& work : batch) transfers.push_back(work->transfer());
    const auto started = communicator->start(transfers);
    for (size_t i = 0; i < batch.size(); ++i) {
      batch[i]->started(started[i]);
      keep(batch[i]);
      works.push_back(batch[i]);
    }
  }
  if (works.empty()) return nullptr;
  if (works.size() == 1) return works[0];
  return c10::make_intrusive<JoinedWork>(rank_, std::move(works));
}

}  // namespace collective_ops::pytorch
