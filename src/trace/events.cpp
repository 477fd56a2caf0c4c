#include "trace/events.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace collective_ops {
namespace {

uint64_t hash_of(std::string_view text) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
  uint64_t hash = text.size() * kFactor;
  uint64_t word = 0;
  for (; text.size() >= sizeof(word); text.remove_prefix(sizeof(word))) {
    std::memcpy(&word, text.data(), sizeof(word));
    hash = (std::rotl(hash, 23) ^ word) * kFactor;
  }
  word = 0;
  std::memcpy(&word, text.data(), text.size());
  hash = (std::rotl(hash, 23) ^ word) * kFactor;
  return hash ^ hash >> 29;
}

}  // namespace

std::string_view SharedTexts::keep(std::string_view text) {
  const std::lock_guard lock(mutex_);
  return *texts_.emplace(text).first;
}

void NameTable::insert(uint64_t hash, uint32_t id) {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].id != UINT32_MAX) at = (at + 1) & mask;
  slots_[at] = {static_cast<uint32_t>(hash >> 32), id};
}

void NameTable::grow() {
  slots_.assign(std::max<size_t>(64, std::bit_ceil(4 * (names_.size() + 1))), {});
  for (uint32_t id = 0; id < names_.size(); ++id) insert(hash_of(names_[id]), id);
}

uint32_t NameTable::intern(std::string_view text) {
  if (slots_.size() < 2 * (names_.size() + 1)) grow();
  const uint64_t hash = hash_of(text);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask; slots_[at].id != UINT32_MAX; at = (at + 1) & mask) {
    if (slots_[at].tag == tag && names_[slots_[at].id] == text) return slots_[at].id;
  }
  const auto id = static_cast<uint32_t>(names_.size());
  names_.emplace_back(shared_ ? shared_->keep(text) : own_.emplace_back(text));
  insert(hash, id);
  return id;
}

void NameTable::close() {
  slots_ = {};
  names_.shrink_to_fit();
}

}  // namespace collective_ops
