// The registry of algorithms. docs/algorithms.md describes each: bytes, synchronisations, when it is taken.
#pragma once

#include <span>
#include <string_view>

#include "plan/plan.h"

namespace collective_ops {

struct Algorithm {
  std::string_view name;
  Collective collective;
  Plan (*make)();
};

// All of them; those of one collective stand together.
std::span<const Algorithm> algorithms();

// A plan that lives as long as the process, built at first use. nullptr: there is no such algorithm.
const Plan* find_plan(Collective collective, std::string_view name);

// Calls with counts use the plans of the collective without.
Collective without_counts(Collective collective);

Plan barrier_arrival();
Plan all_reduce_one_shot();
Plan all_reduce_direct();
Plan all_reduce_two_shot();
Plan all_reduce_read();
Plan all_reduce_ring();
Plan all_reduce_tree();
Plan all_reduce_recursive_doubling();
Plan all_reduce_halving_doubling();
Plan all_reduce_nhr();
Plan all_reduce_double_tree();
Plan broadcast_one_shot();
Plan broadcast_direct();
Plan broadcast_push();
Plan broadcast_staged();
Plan broadcast_tree();
Plan broadcast_nhr();
Plan all_gather_one_shot();
Plan all_gather_direct();
Plan all_gather_push();
Plan all_gather_staged();
Plan all_gather_ring();
Plan all_gather_halving_doubling();
Plan all_gather_nhr();
Plan all_gather_bruck();
Plan reduce_scatter_one_shot();
Plan reduce_scatter_direct();
Plan reduce_scatter_staged();
Plan reduce_scatter_ring();
Plan reduce_scatter_halving_doubling();
Plan reduce_scatter_nhr();
Plan reduce_one_shot();
Plan reduce_direct();
Plan reduce_pull();
Plan reduce_staged();
Plan reduce_tree();
Plan reduce_nhr();
Plan gather_one_shot();
Plan gather_direct();
Plan gather_push();
Plan gather_staged();
Plan gather_linear();
Plan gather_tree();
Plan scatter_one_shot();
Plan scatter_direct();
Plan scatter_staged();
Plan scatter_linear();
Plan scatter_tree();
Plan all_to_all_one_shot();
Plan all_to_all_direct();
Plan all_to_all_staged();
Plan all_to_all_pairwise();
Plan all_to_all_bruck();

}  // namespace collective_ops
