// c10d's Work of one call, blocking or not.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <collective_ops/communicator.h>

#include "torch/pytorch.h"
#include "torch/task.h"

namespace collective_ops::pytorch {

class CallWork;

// Told once of each work's end, before anybody who waits for it.
class WorkObserver {
 public:
  virtual ~WorkObserver() = default;
  virtual void ended(const CallWork& work, const Status& status) = 0;
};

class CallWork final : public c10d::Work {
 public:
  // `title`: of the range in a profile, from here to the end of the call; nullptr: none.
  CallWork(int rank, Task task, const char* title, std::shared_ptr<WorkObserver> observer);

  // Runs the call in this thread; raises its error.
  static void run(const c10::intrusive_ptr<CallWork>& work, Communicator& communicator);
  // Starts it; a wait runs it where it has not begun.
  static void start(const c10::intrusive_ptr<CallWork>& work,
                    const std::shared_ptr<Communicator>& communicator);

  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  void abort() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return task_.sequence; }

  const Task& task() const { return task_; }
  std::chrono::steady_clock::time_point begun() const { return begun_; }
  std::chrono::steady_clock::time_point ended() const { return ended_; }

 private:
  class Listener;

  void begin();
  void end(const Status& status);
  void complete_future();

  Task task_;
  std::shared_ptr<WorkObserver> observer_;
  std::shared_ptr<collective_ops::Work> work_;  // none where the call ran at once
  std::weak_ptr<Communicator> communicator_;
  std::chrono::steady_clock::time_point begun_, ended_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // made when asked for
  bool future_completed_ = false;
};

}  // namespace collective_ops::pytorch
