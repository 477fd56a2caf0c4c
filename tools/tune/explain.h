// Which plans could serve a call, what each costs by the model, and which one a communicator takes.
#pragma once

#include <string>
#include <vector>

#include <collective_ops/communicator.h>

#include "topology/topology.h"
#include "tuner/candidates.h"

namespace collective_ops::tune {

struct Question {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  size_t bytes = 0;    // of the whole vector: of all ranks' parts where the collective has parts
  bool shared = true;  // the ranks' buffers lie in memory that they share
};

struct Explained {
  Candidate candidate;
  bool chosen = false;
};

// Cheapest first; of the ranks of `topology`. The choice is that of the environment and the tables which
// communicators use themselves, so it is the plan that a trace names.
// kInvalidArgument: no such call; what lower() and forced_by_environment() say.
Result<std::vector<Explained>> explain(const Question& question, const Topology& topology);

// Over the hosts of `topology`, as groups that span hosts run a call: parts inside each host, and between
// hosts one of the plans of messages, by one rank of each host or by all in slices. Of all_reduce, broadcast
// and reduce; of the others the plans of messages between all ranks. The path is "messages"; of several
// columns that send at once, the link is shared. Errors as above; kInvalidArgument where the hosts do not
// divide the ranks.
Result<std::vector<Explained>> explain_hosts(const Question& question, const Topology& topology);

}  // namespace collective_ops::tune
