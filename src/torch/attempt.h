// From the arguments of a collective to its call. One that is refused for its arguments counts as a call all
// the same: peers that made it learn of it at once, and ranks that refuse alike stay in step.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include "torch/backend.h"

namespace collective_ops::pytorch {

class Attempt {
 public:
  explicit Attempt(ProcessGroupCollectiveOps& group)
      : group_(group), communicator_(group.communicator()), exceptions_(std::uncaught_exceptions()) {}
  ~Attempt() {
    if (!issued_ && std::uncaught_exceptions() > exceptions_) communicator_->refuse_call();
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  WorkPtr issue(Task task) {
    issued_ = true;
    return group_.issue(communicator_, std::move(task));
  }
  // One behind the other, as one work with these results.
  WorkPtr issue(std::vector<Task> tasks, const TensorList& results);

  // ValueError unless `root` is a rank; `call` is the collective's name.
  int root(int64_t root, const char* call) const;

 private:
  ProcessGroupCollectiveOps& group_;
  std::shared_ptr<Communicator> communicator_;
  int exceptions_;
  bool issued_ = false;
};

}  // namespace collective_ops::pytorch
