// Several works that c10d sees as one: a coalesced call, a batch of messages.
#pragma once

#include <vector>

#include "torch/pytorch.h"

namespace collective_ops::pytorch {

class JoinedWork final : public c10d::Work {
 public:
  // `works` are not empty. Their results, or `result` where there is one, are this work's.
  JoinedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works,
             std::vector<at::Tensor> result = {});

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return works_.back()->getSequencenumber(); }

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::vector<at::Tensor> result_;
};

}  // namespace collective_ops::pytorch
