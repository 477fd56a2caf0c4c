#include "torch/call_work.h"

#include <string>
#include <utility>

#include "torch/errors.h"
#include "torch/flight_recorder.h"

namespace collective_ops::pytorch {

// Keeps the work, and with it the tensors, alive until the call is done.
class CallWork::Listener final : public CallListener {
 public:
  explicit Listener(c10::intrusive_ptr<CallWork> work) : work_(std::move(work)) {}
  void before() override { work_->begin(); }
  void after(const Status& status) override { work_->end(status); }
  void done() override {
    work_->complete_future();
    work_.reset();
  }

 private:
  c10::intrusive_ptr<CallWork> work_;
};

CallWork::CallWork(int rank, Task task, const char* title, std::shared_ptr<WorkObserver> observer)
    : c10d::Work(rank, task.kind.type, title, title != nullptr ? std::optional(task.inputs) : std::nullopt),
      task_(std::move(task)),
      observer_(std::move(observer)) {}

void CallWork::run(const c10::intrusive_ptr<CallWork>& work, Communicator& communicator) {
  work->begin();
  const Status status = [&] {
    const Interruptible here;
    return communicator.run(work->task_.bind());
  }();
  work->end(status);
  work->complete_future();
  if (const std::exception_ptr error = work->exception()) std::rethrow_exception(error);
}

void CallWork::start(const c10::intrusive_ptr<CallWork>& work,
                     const std::shared_ptr<Communicator>& communicator) {
  work->communicator_ = communicator;
  work->work_ = communicator->start(work->task_.bind(), std::make_shared<Listener>(work));
}

void CallWork::begin() {
  begun_ = std::chrono::steady_clock::now();
  FlightRecorder::instance().started(task_.record);
}

void CallWork::end(const Status& status) {
  ended_ = std::chrono::steady_clock::now();
  std::exception_ptr error;
  if (status.ok()) {
    FlightRecorder::instance().ended(task_.record);
    try {
      task_.output.deliver();
    } catch (...) {
      error = std::current_exception();
    }
  } else {
    error = to_exception(status);
  }
  task_.input = {};
  task_.output = {};
  observer_->ended(*this, status);
  finish(error);
}

bool CallWork::wait(std::chrono::milliseconds timeout) {
  if (work_ && !isCompleted()) {
    const Interruptible here;
    std::optional<std::chrono::milliseconds> limit;
    if (timeout > kNoTimeout) limit = timeout;
    const Status status = work_->wait(limit);
    if (!status.ok() && !isCompleted()) raise(status);  // this wait ended, the call goes on
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
  return true;
}

void CallWork::abort() {
  if (isCompleted()) return;
  if (const auto communicator = communicator_.lock())
    communicator->abort(c10::str("rank ", rank_, " aborted its ", task_.kind.title));
}

int CallWork::sourceRank() const { TORCH_CHECK(false, "only a recv from any source has a source rank"); }

std::vector<at::Tensor> CallWork::result() {
  TORCH_CHECK(isCompleted(), "the call has not ended yet; wait() for it first");
  return task_.outputs;
}

c10::intrusive_ptr<c10::ivalue::Future> CallWork::getFuture() {
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  }
  // Otherwise the thread that ends the call sees the future: it looks after the work is completed.
  if (isCompleted()) complete_future();
  return future_;
}

void CallWork::complete_future() {
  {
    const std::lock_guard lock(mutex_);
    if (!future_ || std::exchange(future_completed_, true)) return;
  }
  if (const std::exception_ptr error = exception()) {
    future_->setErrorIfNeeded(error);
  } else {
    future_->markCompleted(c10::IValue(task_.outputs));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> CallWork::getFutureResult() {
  return getFuture()->then(
      [](c10::ivalue::Future& future) {
        return c10::IValue(static_cast<int64_t>(future.hasError() ? c10d::WorkResult::COMM_ERROR
                                                                  : c10d::WorkResult::SUCCESS));
      },
      c10::IntType::get());
}

float CallWork::getDuration() const {
  return std::chrono::duration<float, std::milli>(ended_ - begun_).count();
}

}  // namespace collective_ops::pytorch
