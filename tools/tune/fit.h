// The machine's numbers from calls that were timed: those with which played calls take the times measured.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

#include "plan/play.h"
#include "topology/topology.h"

namespace collective_ops::tune {

struct Observation {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  int ranks = 2;
  size_t bytes = 0;  // as in SweepSpec
  std::string algorithm;
  std::string path;
  double us = 0;
};

struct Fitted {
  Topology topology;
  std::vector<double> predicted_us;  // of each observation
  double median_error = 0;           // of |predicted / measured - 1|
};

// Changes one number of `start` at a time, as long as that brings the logarithms of predicted and measured
// times nearer to each other; at most `rounds` times each, and by a factor of 4 in all. The speed of memory
// stays. kInvalidArgument: an observation of a call that cannot be.
Result<Fitted> fit(std::span<const Observation> observations, const Topology& start, int rounds);

}  // namespace collective_ops::tune
