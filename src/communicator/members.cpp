#include "communicator/members.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace collective_ops {
namespace {

constexpr size_t kNamedRanks = 32;

// "0-2,5", of ascending ranks.
std::string ranges(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

Members Members::world(int world_size) {
  Members members;
  members.ranks.resize(static_cast<size_t>(world_size));
  std::iota(members.ranks.begin(), members.ranks.end(), 0);
  return members;
}

std::string Members::text() const { return is_world() ? "the group" : group_text(name, all()); }

std::string Members::list(std::span<const int> chosen) const {
  std::vector<int> numbers;
  for (const int rank : chosen) numbers.push_back(world_rank(rank));
  std::sort(numbers.begin(), numbers.end());
  return fmt::format("{} {}", numbers.size() == 1 ? "rank" : "ranks", ranges(numbers));
}

std::string group_text(std::string_view name, std::span<const int> world_ranks) {
  const size_t shown = std::min(world_ranks.size(), kNamedRanks);
  return fmt::format(
      "group {}of {} {}{}", name.empty() ? "" : fmt::format("\"{}\" ", name),
      world_ranks.size() == 1 ? "rank" : "ranks", fmt::join(world_ranks.first(shown), ","),
      shown < world_ranks.size() ? fmt::format(" and {} more", world_ranks.size() - shown) : "");
}

}  // namespace collective_ops
