#include "torch/backend.h"

#include <utility>

#include "torch/attempt.h"
#include "torch/errors.h"
#include "torch/flight_recorder.h"
#include "torch/joined_work.h"
#include "torch/profile.h"
#include "torch/rendezvous.h"

namespace collective_ops::pytorch {
namespace {

NewGroup described(const ProcessGroupCollectiveOps::Options& options, int rank, int size) {
  NewGroup group{options.group_name, rank, options.global_ranks_in_group, options.timeout};
  if (group.size() != size) {
    group.global_ranks.clear();
    for (int other = 0; other < size; ++other) group.global_ranks.push_back(static_cast<uint64_t>(other));
  }
  return group;
}

}  // namespace

ProcessGroupCollectiveOps::ProcessGroupCollectiveOps(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                     int size, c10::intrusive_ptr<Options> options,
                                                     std::string name)
    : Backend(rank, size),
      name_(std::move(name)),
      store_(store),
      options_(std::move(options)),
      membership_(join(store_, described(*options_, rank, size))) {
  state_->set_global_rank(static_cast<int>(membership_->roster().global(rank)));
  init();
}

ProcessGroupCollectiveOps::~ProcessGroupCollectiveOps() { membership_->leave(); }

std::shared_ptr<Communicator> ProcessGroupCollectiveOps::communicator() {
  if (auto communicator = membership_->communicator()) return communicator;
  raise({ErrorCode::kNotInitialized, c10::str("process group ", options_->group_name,
                                              " was shut down; no call is possible on it any more")});
}

void ProcessGroupCollectiveOps::abort() {
  if (const auto communicator = membership_->communicator())
    communicator->abort(c10::str("rank ", rank_, " aborted the process group"));
}

void ProcessGroupCollectiveOps::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    coalesced_.clear();
    batch_.clear();
  }
  membership_->leave();
  const std::lock_guard lock(mutex_);
  kept_messages_.clear();  // the communicator has let go of their memory
}

std::shared_ptr<Window> ProcessGroupCollectiveOps::open_window(std::shared_ptr<SharedBuffer> part,
                                                               size_t signal_bytes) {
  const auto comm = communicator();
  Result<std::unique_ptr<Window>> window = Status();
  {
    const WithoutGil released;
    const Interruptible here;
    window = comm->open_window(std::move(part), signal_bytes);
  }
  check(window.status());
  return std::move(*window);
}

Counters ProcessGroupCollectiveOps::counters() { return communicator()->counters(); }

std::chrono::milliseconds ProcessGroupCollectiveOps::timeout_of(std::chrono::milliseconds given) const {
  return core_timeout(given.count() < 0 ? options_->timeout : given);
}

WorkPtr ProcessGroupCollectiveOps::issue(const std::shared_ptr<Communicator>& communicator, Task task) {
  task.call.timeout = timeout_of(task.timeout);
  task.sequence = ++sequence_;
  const bool coalesced = coalescing_;
  task.record =
      FlightRecorder::instance().issued(*this, options_->global_ranks_in_group, task, *task.call.timeout);
  const CommsRecord record(*this, options_->global_ranks_in_group, task);
  const bool blocking = !task.async && !coalesced;
  const char* title = profiled() ? range_title(name_, task.kind.title) : nullptr;
  auto work = c10::make_intrusive<CallWork>(rank_, std::move(task), title, state_);
  state_->begun();
  if (blocking) {
    CallWork::run(work, *communicator);
  } else {
    CallWork::start(work, communicator);
  }
  if (coalesced) {
    const std::lock_guard lock(mutex_);
    coalesced_.push_back(work);
  }
  return work;
}

WorkPtr Attempt::issue(std::vector<Task> tasks, const TensorList& results) {
  if (tasks.size() == 1) {
    tasks[0].outputs = results;
    return issue(std::move(tasks[0]));
  }
  std::vector<WorkPtr> works;
  for (Task& task : tasks) works.push_back(issue(std::move(task)));
  return c10::make_intrusive<JoinedWork>(group_.getRank(), std::move(works), results);
}

int Attempt::root(int64_t root, const char* call) const {
  TORCH_CHECK_VALUE(root >= 0 && root < group_.getSize(), call, ": invalid root rank: ", root,
                    "; the group has ranks 0 to ", group_.getSize() - 1);
  return static_cast<int>(root);
}

}  // namespace collective_ops::pytorch
