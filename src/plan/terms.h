// What the symbols of a plan stand for at one place of one rank's program: ranks, repetitions, conditions.
//
// The two trees of the bases kParent, kLeftChild and kRightChild are binary and of depth ceil(log2 n). In
// tree 0 rank 0 is the root with one child; below it stand all others, in order from left to right, so that
// odd ranks are leaves. Tree 1 is the same on ranks that are numbered backwards (n even) or from rank 1 on (n
// odd). So every rank but one has no children in one of them, and with half of the bytes in each tree all
// ranks send about as much. (Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast,
// reduction and scan, 2009.)
#pragma once

#include <vector>

#include "plan/program.h"

namespace collective_ops {

// The values of a statement's variables at one place of the program.
struct Place {
  int each = 0;       // q
  int distance = 0;   // d
  int step = 0;       // of a loop over steps
  int iteration = 0;  // of an unrolled loop
  bool in_chunks = false;
};

class Terms {
 public:
  explicit Terms(const Binding& binding) : n_(binding.world_size), me_(binding.rank), root_(binding.root) {}

  // -1: there is no such rank.
  int rank_of(const RankTerm& term, const Place& place) const;
  // Whether this rank runs the statement in this step.
  bool runs(const Statement& statement, const Place& place) const;
  // Where it runs it, once for each of these.
  std::vector<Place> repetitions(const Statement& statement, Place place) const;
  // The steps of a loop over steps, in order.
  std::vector<int> steps(const Loop& loop) const;
  // Of kDoubling: ranks from p up run none.
  bool runs(const Loop& loop) const;

 private:
  int relative(int origin) const { return (me_ - origin + n_) % n_; }
  int relative(const Statement& statement) const;
  int neighbour(const RankTerm& term) const;
  bool has_distance(const Statement& statement, int step, int d) const;

  int n_, me_, root_;
};

}  // namespace collective_ops
