#include "plan/footprint.h"

#include <algorithm>

namespace collective_ops {
namespace {

// The part that is lost of what was last used `distance` bytes ago: caches do not forget all at once.
double lost(double distance, double cache_bytes) {
  return std::clamp((distance / cache_bytes - 0.6) / 0.8, 0.0, 1.0);
}

}  // namespace

int Footprint::add_memory(uint64_t bytes, uint64_t cell_bytes) {
  const size_t cells = static_cast<size_t>((bytes + cell_bytes - 1) / cell_bytes);
  memories_.push_back(
      {cell_bytes, std::vector<Cell>(cells, Cell{std::vector<double>(touched_.size(), -1), -1})});
  return static_cast<int>(memories_.size()) - 1;
}

Footprint::Price Footprint::touch(int core, int memory, uint64_t begin, uint64_t end, bool stores) {
  Price price;
  Memory& space = memories_[static_cast<size_t>(memory)];
  double& mine = touched_[static_cast<size_t>(core)];
  for (uint64_t at = begin; at < end;) {
    const uint64_t number = at / space.cell_bytes;
    const uint64_t stop = std::min(end, (number + 1) * space.cell_bytes);
    const auto bytes = static_cast<double>(stop - at);
    Cell& cell = space.cells[number];
    double& seen = cell.seen[static_cast<size_t>(core)];
    const bool alone = std::ranges::count_if(cell.seen, [](double when) { return when >= 0; }) <= 1;
    double far =
        seen < 0 || (stores && !alone) ? 1 : lost(mine - seen, static_cast<double>(topology_.cache_bytes));
    const double in_memory = cell.touched < 0 ? 0
                                              : lost(all_touched_ - cell.touched,
                                                     static_cast<double>(topology_.shared_cache_bytes));
    price.memory_bytes += in_memory * bytes;
    price.cached_ns += bytes * (stores ? far * topology_.store_far_ns + (1 - far) * topology_.store_near_ns
                                       : far * topology_.load_far_ns + (1 - far) * topology_.load_near_ns);
    if (stores) std::ranges::fill(cell.seen, -1);
    mine += bytes;
    all_touched_ += bytes;
    seen = mine;
    cell.touched = all_touched_;
    at = stop;
  }
  return price;
}

}  // namespace collective_ops
