// Turns the calls of a group into trace records. Off unless a recorder is given.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <collective_ops/communicator.h>

#include "communicator/members.h"
#include "communicator/messages.h"
#include "communicator/program_cache.h"
#include "trace/recorder.h"
#include "transport/shm/waiter.h"

namespace collective_ops {

struct TracedCall {
  const Call& call;
  const PreparedCall& prepared;
  const PreparedProgram* used;  // nullptr where the call failed before a program was chosen
  TracePath path;
  uint64_t sequence;
  ErrorCode status;
};

class CallTrace {
 public:
  // Names the group in the trace; calls are told by ranks of the world.
  void start(std::shared_ptr<Recorder> recorder, const Members& members);
  void stop() { recorder_.reset(); }
  bool on() const { return recorder_ != nullptr; }

  void begin(int64_t issued_ns, shm::Waiter& waiter);
  void end(const TracedCall& traced, shm::Waiter& waiter);

  // Also while a call runs, from any thread.
  void record(const MessageTrace& message);

 private:
  std::shared_ptr<Recorder> recorder_;
  Members members_;
  std::atomic<uint64_t> messages_{0};
  int64_t issued_ns_ = 0;
  int64_t begun_ns_ = 0;
  std::vector<PeerRecord> peers_;
};

}  // namespace collective_ops
