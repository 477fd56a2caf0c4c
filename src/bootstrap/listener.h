// The listening socket that stands for a rank while its process lives.
#pragma once

#include <cstdint>
#include <string>

#include <collective_ops/status.h>

#include "memory/private_descriptor.h"

namespace collective_ops {

// Binds socket_name(job, rank) and listens. A name held by a process that is just ending is waited for
// until `deadline_ns`; one held by a living process is kDuplicateRank after half a second.
Result<PrivateDescriptor> claim_rank(const std::string& job, int rank, int64_t deadline_ns);

}  // namespace collective_ops
