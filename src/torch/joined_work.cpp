#include "torch/joined_work.h"

#include <algorithm>
#include <utility>

#include <ATen/core/List.h>

namespace collective_ops::pytorch {

JoinedWork::JoinedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works,
                       std::vector<at::Tensor> result)
    : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)), result_(std::move(result)) {}

bool JoinedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
}

bool JoinedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr JoinedWork::exception() const {
  for (const auto& work : works_) {
    if (const std::exception_ptr error = work->exception()) return error;
  }
  return nullptr;
}

bool JoinedWork::wait(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (const auto& work : works_) {
    auto left = timeout;
    if (timeout > kNoTimeout) {
      left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      left = std::max(left, std::chrono::milliseconds(1));
    }
    work->wait(left);
  }
  return true;
}

void JoinedWork::abort() {
  for (const auto& work : works_) work->abort();
}

std::vector<at::Tensor> JoinedWork::result() {
  if (!result_.empty()) return result_;
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    const auto one = work->result();
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> JoinedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then(
      [self = c10::intrusive_ptr<JoinedWork>::unsafe_reclaim_from_nonowning(this)](
          c10::ivalue::Future& all) -> c10::IValue {
        (void)all.value();  // throws the first error
        return self->result();
      },
      c10::ListType::create(c10::TensorType::get()));
}

}  // namespace collective_ops::pytorch
