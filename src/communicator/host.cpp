#include "communicator/host.h"

#include <fmt/format.h>

#include "communicator/failure_text.h"

namespace collective_ops {

uint32_t Host::next_number(const Members& members) {
  const std::lock_guard lock(mutex_);
  return numbers_[{members.parent, members.name, members.ranks}]++;
}

void Host::note(const void* group, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (text.empty()) {
    if (notes_.erase(group) == 0) return;
  } else {
    notes_[group] = text;
  }
  std::string all;
  for (const auto& [key, part] : notes_) all += (all.empty() ? "" : ", and ") + part;
  world_.write_note(world_rank_, all);
}

std::string Host::elsewhere(int world_rank, const Members& asking) const {
  std::string text = world_.read_note(world_rank);
  if (!asking.is_world()) {
    const shm::RankState& state = world_.state(world_rank);
    const uint64_t issued = state.issued.load(std::memory_order_relaxed);
    if (issued != state.finished.load(std::memory_order_relaxed) && !world_.broken()) {
      const Members world = Members::world(world_.world_size());
      text += fmt::format("{}{} of the group of all ranks", text.empty() ? "" : ", and ",
                          describe_last_call(world_, world, world_rank));
    }
  }
  return text.empty() ? "" : fmt::format("; meanwhile it {}", text);
}

}  // namespace collective_ops
