// What the environment says about plans. Must be equal on all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

#include "tuner/plugin.h"
#include "tuner/table.h"

namespace collective_ops {

enum class PathChoice : uint8_t { kAuto, kStaged, kDirect, kRead };

using AlgorithmNames = std::array<std::string, kCollectiveCount>;

struct Forced {
  PathChoice path = PathChoice::kAuto;  // COLLECTIVE_OPS_PATH
  // COLLECTIVE_OPS_ALGORITHM. Empty: choose; a collective that has no such algorithm is chosen for as well.
  std::string algorithm;
  // HCCL_ALGO, else NCCL_ALGO, by collective: taken where there is such a plan and its staging memory
  // suffices. These variables are often meant for cards, so they never make a call fail.
  AlgorithmNames preferred;
  // HCCL_DETERMINISTIC=strict: of `preferred` those alone that reduce in the order of ranks.
  bool strict = false;
  // COLLECTIVE_OPS_TUNING_TABLE and COLLECTIVE_OPS_TUNER_PLUGIN; nullptr: none.
  std::shared_ptr<const Table> table;
  std::shared_ptr<const Plugin> plugin;
  std::string plugin_file;

  // Equal where all but the path is: ranks compare it before their first call.
  std::string text() const;
};
Result<Forced> forced_by_environment();

// "level0:NA;level1:ring", or "allreduce=level0:NA;level1:ring/broadcast=...": ring, H-D_R, NHR, NB (Bruck)
// and pairwise are those that both have. What cannot be understood counts for nothing; `collective-ops
// doctor` names it.
AlgorithmNames algorithms_of_hccl(std::string_view text);
// "Ring", "Tree,Ring", "allreduce:tree;broadcast:ring": of a list the first that both have; PAT is nhr.
// "^Tree" forces nothing.
AlgorithmNames algorithms_of_nccl(std::string_view text);

}  // namespace collective_ops
