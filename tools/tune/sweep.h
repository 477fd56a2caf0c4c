// Times every algorithm and path that could serve a call, in turn, on processes of this host.
#pragma once

#include <string>
#include <vector>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

namespace collective_ops::tune {

struct SweepSpec {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  int ranks = 2;
  std::vector<size_t> sizes;  // bytes of the whole vector: of all ranks' parts where the collective has parts
  int rounds = 7;
  double batch_ms = 4;  // of calls one behind the other
};

struct SweepPoint {
  size_t bytes = 0;
  bool shared = true;  // memory that the ranks share
  std::string algorithm;
  std::string path;     // as in traces
  bool chosen = false;  // what a communicator takes by itself
  bool ordered = true;  // reduces in the order of ranks, or nothing; others are taken only where asked for
  std::vector<double>
      us;  // per call on the slowest rank, of each round; one that is far behind has one round
};

// Forks the other ranks, which end with this process, and is rank 0 itself; so it is called before the first
// thread is made. Beside the candidates there is one named "auto" for each memory: a communicator that
// chooses for itself, timed as another contender. Errors: kInvalidArgument; kSystem where no process can be
// made; what a call says.
Result<std::vector<SweepPoint>> sweep(const SweepSpec& spec);

}  // namespace collective_ops::tune
