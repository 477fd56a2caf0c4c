// Which plans could serve a call, what each costs by the model, and which one a communicator takes.
#pragma once

#include <string>
#include <vector>

#include <collective_ops/communicator.h>

#include "plan/cost.h"
#include "topology/topology.h"

namespace collective_ops::tune {

struct Question {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  size_t bytes = 0;    // of the whole vector: of all ranks' parts where the collective has parts
  bool shared = true;  // the ranks' buffers lie in memory that they share
};

struct Candidate {
  std::string name;
  std::string path;  // inline, staged, direct or read, as in traces
  Cost cost;
  bool chosen = false;
};

// Cheapest first; of the ranks of `topology`. The choice is that of the environment and the thresholds which
// communicators use themselves, so it is the plan that a trace names.
// kInvalidArgument: no such call; what lower() and forced_by_environment() say.
Result<std::vector<Candidate>> explain(const Question& question, const Topology& topology);

}  // namespace collective_ops::tune
