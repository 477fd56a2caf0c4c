// New groups out of existing ones: their ranks meet over the store that they already have.
#include <algorithm>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "torch/backend.h"
#include "torch/errors.h"

namespace collective_ops::pytorch {

// torch.distributed's SHRINK_ABORT.
constexpr int kShrinkAbort = 1;

c10::intrusive_ptr<c10d::Backend> ProcessGroupCollectiveOps::regroup(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<c10d::Backend::Options>& given, const std::vector<uint64_t>& global_ranks) {
  auto options = c10::make_intrusive<Options>(given ? given->timeout : options_->timeout);
  options->group_name = given && !given->group_name.empty() ? given->group_name : options_->group_name;
  options->group_desc = given ? given->group_desc : options_->group_desc;
  options->global_ranks_in_group = global_ranks;
  return c10::make_intrusive<ProcessGroupCollectiveOps>(store, rank, size, std::move(options), name_);
}

// Ranks of the world, for ranks of this group.
std::vector<uint64_t> ProcessGroupCollectiveOps::global_ranks_of(const std::vector<int>& ranks) const {
  std::vector<uint64_t> result;
  for (const int rank : ranks) {
    const auto index = static_cast<size_t>(rank);
    const auto& known = options_->global_ranks_in_group;
    result.push_back(index < known.size() ? known[index] : index);
  }
  return result;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupCollectiveOps::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) return nullptr;
  return regroup(store, static_cast<int>(place - ranks.begin()), static_cast<int>(ranks.size()), options,
                 global_ranks_of(ranks));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupCollectiveOps::merge(
    const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<c10d::Backend::Options>& options,
    const int& rank, const int& size) {
  return regroup(store, rank, size, options,
                 options ? options->global_ranks_in_group : std::vector<uint64_t>());
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupCollectiveOps::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  std::vector<int> left;
  std::string name = "collective_ops/shrink";
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) != ranks_to_exclude.end()) continue;
    left.push_back(rank);
    name += c10::str("/", rank);
  }
  const auto place = std::find(left.begin(), left.end(), rank_);
  TORCH_CHECK_VALUE(place != left.end(), "shrink: rank ", rank_, " is among those that are left out");
  if (flags == kShrinkAbort) abort();
  return regroup(c10::make_intrusive<c10d::PrefixStore>(name, store_), static_cast<int>(place - left.begin()),
                 static_cast<int>(left.size()), options, global_ranks_of(left));
}

}  // namespace collective_ops::pytorch
