// What launchers tell the ranks they start: torchrun or a shell loop, mpirun of Open MPI, MPICH and Intel
// MPI, srun, msrun.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <collective_ops/status.h>

namespace collective_ops {

struct Launched {
  std::string launcher;  // for texts
  int rank = 0;
  int world_size = 1;
  int local_size = 0;  // ranks of this host; 0: it does not say
  int hosts = 0;       // 0: it does not say
  bool on_several_hosts() const { return hosts > 1 || (local_size > 0 && local_size < world_size); }
  bool on_one_host() const { return hosts == 1 || local_size == world_size; }
};

// `variable` gives the text of an environment variable, "" where it is not set.
using Variable = std::function<std::string(std::string_view)>;

// Nothing where no launcher has set a rank and a number of ranks. kInvalidArgument: numbers that cannot be.
Result<std::optional<Launched>> find_launched(const Variable& variable);

struct RootPlace {
  std::string host;
  uint16_t port = 0;   // the launcher's own, or what others use; ours are behind it
  std::string origin;  // for texts
};

// Where launchers say that rank 0 is: MASTER_ADDR and MASTER_PORT (default 29500), else msrun's scheduler,
// else the first host of Slurm's step with a port made from the job's number. Nothing where none does.
Result<std::optional<RootPlace>> find_root_place(const Variable& variable);

// The first name of Slurm's "node[01-04,07],other": node01.
std::string first_host(std::string_view nodelist);

// What tells this job from others that use the same secret: COLLECTIVE_OPS_JOB_ID, else the id of torchrun
// with its restart, of Slurm's step; "" where there is none.
std::string launched_job(const Variable& variable);

}  // namespace collective_ops
