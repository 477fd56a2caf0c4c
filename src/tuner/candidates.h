// The plans that could serve a call between ranks of one host, and what they cost.
#pragma once

#include <string>
#include <vector>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

#include "plan/cost.h"
#include "plan/plan.h"
#include "topology/topology.h"

namespace collective_ops {

struct CandidateCall {
  Collective collective = Collective::kAllReduce;
  size_t count = 0;  // elements: of the vector, or of one rank's part
  size_t element_size = 4;
  bool shared = true;  // peers can reach the memory of all ranks; else the kernel reads it where it lets them
};

struct Candidate {
  std::string name;
  std::string path;     // inline, staged, direct or read, as in traces
  bool ordered = true;  // combines nothing, or in the order of ranks
  Cost cost;
};

// What a communicator holds for each rank.
struct StagingMemory {
  size_t inline_bytes = 0;  // of calls that fit a line
  size_t eager_bytes = 0;   // of calls that fit a slot
  size_t scratch_bytes = 0;
};

// In the order of algorithms(), for the ranks of `topology`. Errors: those of lower() and cost().
Result<std::vector<Candidate>> candidates_of(const CandidateCall& call, const Topology& topology,
                                             const StagingMemory& memory);

}  // namespace collective_ops
