// Dumps of PyTorch's flight recorder (torch.distributed), as JSON: the last calls of a rank, also those that
// never ended. python/collective_ops/analysis_inputs.py makes JSON of those that are pickles.
#pragma once

#include <filesystem>
#include <string_view>

#include <collective_ops/status.h>

#include "analysis/profile.h"

namespace collective_ops {

// kInvalidArgument: it is no such dump. `rank` numbers the members of the rank's groups as long as it is
// known.
Result<RankProfile> read_flight_recorder(std::string_view text, int rank);

}  // namespace collective_ops
