// How the ranks of one host find each other: abstract unix sockets named after the job, which vanish
// with their process. Rank 0 collects the others, hands everyone the roster and the control segment,
// and lets all go together once each has confirmed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <collective_ops/communicator.h>
#include <collective_ops/status.h>

#include "bootstrap/mailbox.h"
#include "bootstrap/process.h"
#include "memory/shared_segment.h"

namespace collective_ops {

inline constexpr int kMaxRanksPerHost = 1024;

struct HostGroup {
  int rank = 0;
  int world_size = 1;
  std::string job;
  std::vector<PeerProcess> peers;    // by rank, this one too; not opened
  SharedSegment control;             // zeroed when all ranks get it
  std::unique_ptr<Mailbox> mailbox;  // none where world_size is 1
};

// "0.1.0": ranks of different builds do not form a group.
std::string build_version();

struct JoinSettings {
  // Asked about ten times a second while waiting; a failure ends the join with it (Ctrl-C in Python).
  std::function<Status()> interrupted;
  // What tests replace.
  std::string version = build_version();
};

// Blocks until all ranks of the job have come, or fails on all that wait, with one text:
//   kRendezvous       ranks are missing at the timeout, one died or gave up meanwhile, or world sizes differ
//   kDuplicateRank    a living process holds this rank
//   kVersionMismatch  other builds, or control segments of another size
//   kInvalidArgument  rank or world size out of range
// `control_bytes(world_size)` is the size of the control segment; equal on all ranks of a build.
Result<HostGroup> join(const ConnectOptions& options,
                       const std::function<size_t(int world_size)>& control_bytes,
                       const JoinSettings& settings = {});

}  // namespace collective_ops
