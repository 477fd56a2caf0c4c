// Which processes belong together, without an address or a port.
#pragma once

#include <string>

#include <collective_ops/communicator.h>
#include <collective_ops/status.h>

namespace collective_ops {

// The text by which the ranks of one job on this host know each other. The first that is set:
//   options.job_id; COLLECTIVE_OPS_JOB_ID; torchrun's TORCHELASTIC_RUN_ID with MASTER_ADDR:MASTER_PORT
//   and TORCHELASTIC_RESTART_COUNT (the id alone may be "none"); this user's id with the parent's
//   process id and start time.
// Two jobs under one parent process need COLLECTIVE_OPS_JOB_ID. kInvalidArgument where an id is too long
// or holds a zero byte.
Result<std::string> job_identity(const ConnectOptions& options);

// The abstract socket address (without its leading zero byte) of a rank: collective-ops/<uid>/<hash>/<rank>.
std::string socket_name(const std::string& job, int rank);

}  // namespace collective_ops
