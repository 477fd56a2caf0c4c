// Buffers of one call that overlap without being the same would be read after they were overwritten.
#pragma once

#include <collective_ops/communicator.h>

#include "communicator/call_counts.h"

namespace collective_ops {

// kInvalidArgument unless send and recv are apart, or lie as in-place use of the collective means: the same
// memory, or a rank's own part within the whole (all_gather, gather: send in recv; reduce_scatter, scatter:
// recv in send). `bytes`: of this rank's buffers. A few nanoseconds.
Status check_overlap(const Call& call, const CallBytes& bytes, int rank);

}  // namespace collective_ops
