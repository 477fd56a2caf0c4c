// The c10d backend. Each collective checks its arguments and becomes one Task (task.h), or one for each
// element type where c10d allows several; issue() runs or starts it.
//
// asyncOp=false: the call runs in the caller's thread. Otherwise it is started, and whoever waits first runs
// it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <collective_ops/communicator.h>
#include <collective_ops/python_link.h>

#include "torch/errors.h"
#include "torch/group_state.h"
#include "torch/membership.h"
#include "torch/message_work.h"
#include "torch/pytorch.h"
#include "torch/task.h"

namespace collective_ops::pytorch {

using TensorList = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class ProcessGroupCollectiveOps final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds limit = kBackendDefaultTimeout)
        : c10d::Backend::Options("collective_ops", limit) {}
  };

  // `name`: under which it was registered; titles in profiles begin with it.
  ProcessGroupCollectiveOps(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                            c10::intrusive_ptr<Options> options, std::string name);
  ~ProcessGroupCollectiveOps() override;

  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }

  // reductions.cpp
  WorkPtr allreduce(TensorList& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_sparse(TensorList& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(TensorList& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(TensorList& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr reduce_scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                          const c10d::ReduceScatterOptions& options) override;

  // movements.cpp
  WorkPtr broadcast(TensorList& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<TensorList>& outputs, TensorList& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<TensorList>& outputs, TensorList& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<TensorList>& outputs, TensorList& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(TensorList& outputs, TensorList& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  // messages.cpp
  WorkPtr send(TensorList& tensors, int to, int tag) override;
  WorkPtr recv(TensorList& tensors, int from, int tag) override;
  WorkPtr recvAnysource(TensorList& tensors, int tag) override;

  // Over the store, so that whoever is missing is known, and the group goes on afterwards.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // Calls between these two go on together; messages are posted at the end, all at once.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // regroup.cpp
  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options,
                                          const int& rank, const int& size) override;
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& ranks_to_exclude, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

  // Counts calls; equal on ranks that are in step.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }

  c10d::ErrorType getError() override { return state_->error(); }
  void abort() override;
  void shutdown() override;

  void registerOnCompletionHook(GroupState::Hook&& hook) override { state_->set_hook(std::move(hook)); }
  void waitForPendingWorks() override { state_->wait_for_pending(); }
  void enableCollectivesTiming() override {}  // always on

  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

  // Of all ranks' parts; every rank, in the order of its calls (collective_ops/communicator.h). Throws.
  std::shared_ptr<Window> open_window(std::shared_ptr<SharedBuffer> part, size_t signal_bytes);

  Counters counters();
  // For other modules of the library in this process. Throws after shutdown.
  SharedGroup share() { return {communicator(), &interruptible}; }

 private:
  friend class Attempt;
  // Throws after shutdown.
  std::shared_ptr<Communicator> communicator();
  WorkPtr issue(const std::shared_ptr<Communicator>& communicator, Task task);
  c10::intrusive_ptr<c10d::Backend> regroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            const c10::intrusive_ptr<c10d::Backend::Options>& given,
                                            const std::vector<uint64_t>& global_ranks);
  std::vector<uint64_t> global_ranks_of(const std::vector<int>& ranks) const;
  WorkPtr receive(const Kind& kind, TensorList& tensors, int from, int tag);
  WorkPtr post(Task task, Transfer transfer);
  void lead_monitored_barrier(const std::string& prefix, std::chrono::milliseconds timeout,
                              std::chrono::steady_clock::time_point deadline, bool wait_all_ranks);
  void keep(const c10::intrusive_ptr<MessageWork>& work);
  std::chrono::milliseconds timeout_of(std::chrono::milliseconds given) const;

  const std::string name_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<Options> options_;
  const std::shared_ptr<GroupState> state_ = std::make_shared<GroupState>();
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> message_sequence_{0};
  std::atomic<uint64_t> monitored_barriers_{0};

  std::shared_ptr<Membership> membership_;
  std::mutex mutex_;
  std::atomic<bool> coalescing_{false};
  std::vector<WorkPtr> coalesced_;
  std::vector<c10::intrusive_ptr<MessageWork>> batch_;
  std::vector<c10::intrusive_ptr<MessageWork>> kept_messages_;
  size_t prune_at_ = 8;
};

}  // namespace collective_ops::pytorch
