// Turns the calls of a group into trace records, while its rank's recording is on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <collective_ops/communicator.h>

#include "communicator/call_steps.h"
#include "communicator/members.h"
#include "communicator/messages.h"
#include "trace/recording.h"

namespace collective_ops {

struct TracedCall {
  const Call& call;
  uint64_t payload_bytes;
  uint8_t algorithm;  // index into algorithm_names()
  TracePath path;
  uint64_t sequence;
  ErrorCode status;
};

class CallTrace {
 public:
  // The group is named in the trace; calls are told by ranks of the world.
  void start(std::shared_ptr<Recording> recording, const Members& members);
  void stop() { recording_.reset(); }
  bool on() const { return recording_ != nullptr && recording_->on(); }

  // A call begins. Between this and end(), peers() and steps() are that call's.
  void begin(int64_t issued_ns);
  void end(const TracedCall& traced);
  // What passed between this rank and each rank of the group; `peer` is filled in by end().
  std::vector<PeerRecord>& peers() { return peers_; }
  // nullptr where nobody asked for steps.
  CallSteps* steps() { return detailed_ ? &steps_ : nullptr; }

  // Also while a call runs, from any thread.
  void record(const MessageTrace& message);

 private:
  std::shared_ptr<Recorder> open();

  std::shared_ptr<Recording> recording_;
  Members members_;
  std::mutex mutex_;
  uint64_t named_in_ = 0;  // the recorder that knows this group; holding the mutex
  std::atomic<uint64_t> messages_{0};
  std::shared_ptr<Recorder> recorder_;  // of the call that runs
  bool detailed_ = false;
  int64_t issued_ns_ = 0;
  int64_t begun_ns_ = 0;
  std::vector<PeerRecord> peers_;
  CallSteps steps_;
};

}  // namespace collective_ops
