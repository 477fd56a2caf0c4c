// One rank's end of a group, as a communicator and its queue of calls see it: of a group on one host
// (group.h), or on several (spanning_group.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include <collective_ops/communicator.h>
#include <collective_ops/status.h>

#include "communicator/members.h"

namespace collective_ops {

class MessageEnd;
class Recording;

class GroupEnd {
 public:
  virtual ~GroupEnd() = default;

  // Waits for members on other hosts, before the first call.
  virtual Status meet(int64_t /*deadline_ns*/) { return {}; }

  // CallQueue sees to it that calls run one at a time. `issued_ns`: when the user made the call; 0: now.
  virtual Status run(const Call& call, int64_t issued_ns = 0) = 0;
  // Breaks the group from another thread than the one in a call, which then ends with `reason`.
  virtual void abort(const Status& reason) = 0;
  // Tells the peers that this rank makes no further call. kMismatch where calls differed that no rank has
  // waited in.
  virtual Status leave() = 0;

  // Also while a call runs: set once, before the first.
  virtual Status check_interrupt() const = 0;
  virtual const std::function<Status()>& interrupt_check() const = 0;
  virtual void set_interrupt_check(std::function<Status()> check) = 0;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // On several hosts: those on this one.
  virtual const Members& members() const = 0;
  virtual std::chrono::milliseconds exec_timeout() const = 0;
  virtual Counters counters() const = 0;
  // Of this rank's calls; nullptr: no more, once the last has ended.
  virtual void record_into(std::shared_ptr<Recording> recording) = 0;
  virtual MessageEnd& messages() = 0;
};

}  // namespace collective_ops
