#include "plan/abstract_memory.h"

#include <algorithm>

namespace collective_ops {
namespace {

bool is_before(const Access& access, const Clocks& clocks) { return access.clock <= clocks[access.rank]; }

}  // namespace

size_t Combinations::Hash::operator()(const std::vector<Part>& parts) const {
  uint64_t hash = parts.size();
  for (const Part& part : parts) {
    for (uint64_t word : {uint64_t{part.call} << 32 | part.rank, static_cast<uint64_t>(part.skew)}) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
  }
  return hash;
}

uint32_t Combinations::id_of(const std::vector<Part>& parts) {
  const auto [found, is_new] = ids_.emplace(parts, static_cast<uint32_t>(lists_.size()));
  if (is_new) lists_.push_back(parts);
  return found->second;
}

Value Combinations::combine(std::span<const Value> sources) {
  std::vector<Part> parts;
  parts.reserve(sources.size());
  for (const Value& source : sources) {
    for (const Part& part : lists_[source.parts]) {
      parts.push_back({part.call, part.rank, part.skew + source.origin - sources[0].origin});
    }
  }
  return {id_of(parts), sources[0].origin};
}

AbstractMemory::Segments::iterator AbstractMemory::cut(uint64_t at) {
  if (at == size_) return segments_.end();
  const auto segment = std::prev(segments_.upper_bound(at));
  if (segment->first == at) return segment;
  Segment rest = segment->second;
  rest.value.origin += static_cast<int64_t>(at - segment->first);
  segment->second.end = at;
  return segments_.emplace_hint(std::next(segment), at, std::move(rest));
}

std::optional<Conflict> AbstractMemory::read(uint64_t begin, uint64_t end, const Access& access,
                                             const Clocks& clocks, std::vector<Piece>& pieces) {
  cut(end);
  for (auto segment = cut(begin); segment != segments_.end() && segment->first < end; ++segment) {
    auto& [first, state] = *segment;
    if (state.writer && !is_before(*state.writer, clocks)) {
      return Conflict{*state.writer, true, first, state.end};
    }
    const auto mine = std::ranges::find(state.readers, access.rank, &Access::rank);
    if (mine == state.readers.end()) {
      state.readers.push_back(access);
    } else {
      *mine = access;
    }
    pieces.push_back({state.end - first, state.value});
  }
  return std::nullopt;
}

std::optional<Conflict> AbstractMemory::write(uint64_t begin, const Piece& piece, const Access& access,
                                              const Clocks& clocks) {
  const uint64_t end = begin + piece.length;
  const auto last = cut(end);
  const auto target = cut(begin);
  for (auto segment = target; segment != last; ++segment) {
    const auto& [first, state] = *segment;
    if (state.writer && !is_before(*state.writer, clocks)) {
      return Conflict{*state.writer, true, first, state.end};
    }
    for (const Access& reader : state.readers) {
      if (!is_before(reader, clocks)) return Conflict{reader, false, first, state.end};
    }
  }
  segments_.erase(std::next(target), last);
  target->second.end = end;
  target->second.value = piece.value;
  target->second.writer = access;
  target->second.readers.clear();
  return std::nullopt;
}

}  // namespace collective_ops
