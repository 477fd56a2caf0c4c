// The memory of the abstract machine that proves plans: every byte holds not a number but the list of inputs
// that were combined into it, and remembers who touched it last, so that two accesses in no order are found.
// Bytes that share a history are kept as one segment.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace collective_ops {

// One input in a combined value: `skew` bytes further in its rank's input than the first one's.
struct Part {
  uint32_t call = 0;
  uint32_t rank = 0;
  int64_t skew = 0;
  bool operator==(const Part&) const = default;
};

// What a run of bytes holds: parts of list `parts`, beginning `origin` bytes into the first one's input.
// List 0 is what nobody wrote.
struct Value {
  uint32_t parts = 0;
  int64_t origin = 0;
};

struct Piece {
  uint64_t length = 0;
  Value value;
};

// The lists of parts, each kept once.
class Combinations {
 public:
  Combinations() : lists_(1) {}

  uint32_t input_of(uint32_t call, uint32_t rank) { return id_of({{call, rank, 0}}); }
  // The sources in the order given; none may be of list 0.
  Value combine(std::span<const Value> sources);
  const std::vector<Part>& parts(uint32_t id) const { return lists_[id]; }

 private:
  struct Hash {
    size_t operator()(const std::vector<Part>& parts) const;
  };

  uint32_t id_of(const std::vector<Part>& parts);

  std::vector<std::vector<Part>> lists_;
  std::unordered_map<std::vector<Part>, uint32_t, Hash> ids_;
};

// clocks[r]: how far in rank r's course the owner of the clocks is known to be ordered after it.
using Clocks = std::vector<uint32_t>;

struct Access {
  uint32_t rank = 0;
  uint32_t clock = 0;  // of `rank`
  uint32_t call = 0;
  int32_t instruction = 0;  // kByCaller: the caller's own, before or after the call
  uint32_t iteration = 0;
  static constexpr int32_t kByCaller = -1;
};

struct Conflict {
  Access earlier;
  bool earlier_wrote = false;
  uint64_t begin = 0, end = 0;
};

class AbstractMemory {
 public:
  explicit AbstractMemory(uint64_t size) : size_(size) {
    if (size > 0) segments_.emplace(0, Segment{.end = size});
  }

  uint64_t size() const { return size_; }

  // Of [begin, end), begin < end <= size. Appends what is there to `pieces`.
  std::optional<Conflict> read(uint64_t begin, uint64_t end, const Access& access, const Clocks& clocks,
                               std::vector<Piece>& pieces);
  std::optional<Conflict> write(uint64_t begin, const Piece& piece, const Access& access,
                                const Clocks& clocks);

 private:
  struct Segment {
    uint64_t end = 0;
    Value value;
    std::optional<Access> writer;
    std::vector<Access> readers;  // since then; the last of each rank
  };
  using Segments = std::map<uint64_t, Segment>;

  // The segment that begins at `at`, cut off where needed.
  Segments::iterator cut(uint64_t at);

  uint64_t size_;
  Segments segments_;
};

}  // namespace collective_ops
