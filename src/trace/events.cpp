#include "trace/events.h"

namespace collective_ops {

std::string_view SharedTexts::keep(std::string_view text) {
  const std::lock_guard lock(mutex_);
  return *texts_.emplace(text).first;
}

uint32_t NameTable::intern(std::string_view text) {
  if (ids_.empty()) {
    for (uint32_t id = 0; id < names_.size(); ++id) ids_.emplace(names_[id], id);
  }
  if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
  const auto id = static_cast<uint32_t>(names_.size());
  ids_.emplace(names_.emplace_back(shared_ ? shared_->keep(text) : own_.emplace_back(text)), id);
  return id;
}

void NameTable::close() {
  ids_ = {};
  names_.shrink_to_fit();
}

}  // namespace collective_ops
