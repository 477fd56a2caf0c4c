#include "trace/events.h"

namespace collective_ops {

uint32_t NameTable::intern(std::string_view text) {
  if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
  const auto id = static_cast<uint32_t>(names_.size());
  ids_.emplace(names_.emplace_back(text), id);
  return id;
}

}  // namespace collective_ops
