// Which rank this process is, as a launcher says: torchrun, mpirun (Open MPI, MPICH, Intel MPI) or srun.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <collective_ops/status.h>

namespace collective_ops::perf {

struct Place {
  int rank = 0;
  int world_size = 0;  // 0: no launcher
  int local_size = 0;  // ranks of this host; 0: it does not say
  bool launched() const { return world_size > 0; }
};

// `variable` gives the text of an environment variable, "" where it is not set.
// kInvalidArgument: numbers that cannot be.
Result<Place> find_place(const std::function<std::string(std::string_view)>& variable);

}  // namespace collective_ops::perf
