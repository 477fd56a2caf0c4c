// c10d's Work of one message.
#pragma once

#include <memory>

#include <collective_ops/communicator.h>

#include "torch/operand.h"
#include "torch/pytorch.h"
#include "torch/task.h"

namespace collective_ops::pytorch {

class MessageWork final : public c10d::Work {
 public:
  MessageWork(int rank, Task task, Transfer transfer, const char* title);

  // What the core is to be given.
  const Transfer& transfer() const { return transfer_; }
  void started(std::shared_ptr<collective_ops::Work> work);

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return task_.outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return task_.sequence; }

 private:
  void end();

  Task task_;
  Transfer transfer_;
  std::shared_ptr<collective_ops::Work> work_;  // none before a batch is complete
  std::mutex ending_;
  bool ended_ = false;
};

}  // namespace collective_ops::pytorch
