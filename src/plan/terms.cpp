#include "plan/terms.h"

#include <algorithm>
#include <bit>

namespace collective_ops {
namespace {

int floor_power(int n) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(n))); }
int floor_log2(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }

// Positions in tree 0 of n; -1: none.
int parent_of(int position, int n) {
  if (position == 0) return -1;
  const int bit = position & -position;
  const int up = (position ^ bit) | (bit << 1);
  return up < n ? up : position ^ bit;
}

int left_child_of(int position) {
  const int bit = position & -position;
  return bit > 1 ? position - bit / 2 : -1;
}

int right_child_of(int position, int n) {
  if (position == 0) return n > 1 ? floor_power(n - 1) : -1;
  int below = (position & -position) / 2;
  while (below > 0 && position + below >= n) below /= 2;
  return below > 0 ? position + below : -1;
}

}  // namespace

int Terms::neighbour(const RankTerm& term) const {
  // Its own inverse where n is even.
  const auto turned = [&](int rank, int by) {
    return term.tree == 0 ? rank : n_ % 2 == 0 ? n_ - 1 - rank : (rank + by + n_) % n_;
  };
  const int position = turned(me_, -1);
  const int found = term.base == RankTerm::Base::kParent      ? parent_of(position, n_)
                    : term.base == RankTerm::Base::kLeftChild ? left_child_of(position)
                                                              : right_child_of(position, n_);
  return found < 0 ? -1 : turned(found, 1);
}

int Terms::rank_of(const RankTerm& term, const Place& place) const {
  if (term.xor_step) {
    const int origin = term.base == RankTerm::Base::kRoot ? root_ : 0;
    const int partner = relative(origin) ^ (1 << place.step);
    return partner < n_ ? (origin + partner + term.offset + n_) % n_ : -1;
  }
  const int64_t power = int64_t{1} << place.step;
  int64_t rank = term.offset + int64_t{term.step_factor} * place.step + term.power * power +
                 int64_t{term.distance} * place.distance + term.low_bits * (place.distance % power);
  switch (term.base) {
    case RankTerm::Base::kZero:
      break;
    case RankTerm::Base::kMe:
      rank += me_;
      break;
    case RankTerm::Base::kRoot:
      rank += root_;
      break;
    case RankTerm::Base::kEach:
      rank += place.each;
      break;
    default:
      const int found = neighbour(term);
      if (found < 0) return -1;
      rank += found;
      break;
  }
  return static_cast<int>(((rank % n_) + n_) % n_);
}

int Terms::relative(const Statement& statement) const {
  return relative(statement.peer.base == RankTerm::Base::kRoot ? root_ : 0);
}

bool Terms::runs(const Statement& statement, const Place& place) const {
  using Only = Statement::Only;
  const bool is_root = me_ == root_;
  if (statement.guard == Guard::kRoot && !is_root) return false;
  if (statement.guard == Guard::kOthers && is_root) return false;
  const int v = relative(statement);
  const int bit = 1 << place.step;
  switch (statement.only) {
    case Only::kAlways:
      return true;
    case Only::kChild:
      return v % (2 * bit) == bit;
    case Only::kParent:
      return v % (2 * bit) == 0 && v + bit < n_;
    case Only::kUpper:
      return (v & bit) != 0;
    case Only::kLower:
      return (v & bit) == 0 && v + bit < n_;
  }
  return true;
}

bool Terms::has_distance(const Statement& statement, int step, int d) const {
  const int bit = 1 << step;
  switch (statement.each) {
    case Each::kDistances:
      return d > 0;
    case Each::kLowestBit:
      return d > 0 && (d & -d) == bit;
    case Each::kHighestBit:
      return d > 0 && floor_power(d) == bit;
    case Each::kBit:
      return (d & bit) != 0;
    default: {  // kSubtree
      const int child = relative(statement) + (statement.only == Statement::Only::kParent ? bit : 0);
      return d < bit && child + d < n_;
    }
  }
}

std::vector<Place> Terms::repetitions(const Statement& statement, Place place) const {
  std::vector<Place> places;
  switch (statement.each) {
    case Each::kNone:
      return {place};
    case Each::kAll:
    case Each::kOthers:
      for (int i = statement.each == Each::kOthers ? 1 : 0; i < n_; ++i) {
        place.each = (me_ + i) % n_;
        places.push_back(place);
      }
      return places;
    case Each::kMyShare:
    case Each::kPartnersShare: {
      const int group = (me_ >> place.step) ^ (statement.each == Each::kPartnersShare ? 1 : 0);
      const int p = floor_power(n_);
      for (place.each = 0; place.each < n_; ++place.each) {
        if ((place.each % p) >> place.step == group) places.push_back(place);
      }
      return places;
    }
    default:
      for (place.distance = 0; place.distance < n_; ++place.distance) {
        if (has_distance(statement, place.step, place.distance)) places.push_back(place);
      }
      return places;
  }
}

std::vector<int> Terms::steps(const Loop& loop) const {
  if (loop.steps == Loop::Steps::kFold) {
    return floor_power(n_) < n_ ? std::vector<int>{floor_log2(n_)} : std::vector<int>{};
  }
  const int count = loop.steps == Loop::Steps::kRing       ? n_ - 1
                    : loop.steps == Loop::Steps::kDoubling ? floor_log2(n_)
                                                           : std::bit_width(static_cast<unsigned>(n_ - 1));
  std::vector<int> steps(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) steps[static_cast<size_t>(i)] = loop.descending ? count - 1 - i : i;
  return steps;
}

bool Terms::runs(const Loop& loop) const {
  return loop.over != Loop::Over::kSteps || loop.steps != Loop::Steps::kDoubling || me_ < floor_power(n_);
}

}  // namespace collective_ops
