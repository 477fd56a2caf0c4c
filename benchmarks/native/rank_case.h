// One case of a benchmark on one rank: its buffers, its call, and known values to check the result with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <collective_ops/communicator.h>

namespace collective_ops::benchmark {

struct CaseSpec {
  std::string collective = "all_reduce";
  std::string type = "float32";
  std::string op = "sum";
  std::string memory = "shared";  // of peers reachable (Communicator::allocate), or "private"
  size_t bytes = 0;               // the whole vector: of all ranks' parts where the collective has parts
};

// In place wherever the collective allows it, root 0.
class RankCase {
 public:
  // kInvalidArgument names what is unknown; kOutOfMemory and kSystem come from allocate().
  static Result<RankCase> make(const CaseSpec& spec, int rank, int ranks);

  const Call& call() const { return call_; }
  // Puts known values; `wrong` then says how many elements of the call's result are not as they must be.
  // For sums of float32, float64, bfloat16, int32 and int64.
  void fill();
  size_t wrong() const;
  void zero();

 private:
  struct Buffer {
    std::vector<std::byte> bytes;
    std::shared_ptr<SharedBuffer> shared;
    std::byte* data = nullptr;
    size_t size = 0;
    Status take(const std::string& memory, size_t bytes);
  };

  int64_t before(size_t index) const;
  int64_t after(size_t index) const;
  bool holds_whole() const;

  Call call_;
  Buffer data_;
  Buffer other_;  // all_to_all receives here
  int rank_ = 0;
  int ranks_ = 1;
  size_t total_ = 0;  // elements
  size_t part_ = 0;
};

}  // namespace collective_ops::benchmark
