// One case of a measurement on one rank: its buffers, its call, and known values to check the result with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <collective_ops/communicator.h>

namespace collective_ops::perf {

struct CaseSpec {
  std::string collective = "all_reduce";
  std::string type = "float32";
  std::string op = "sum";
  std::string memory = "shared";  // of peers reachable (Communicator::allocate), or "private"
  size_t bytes = 0;               // the whole vector: of all ranks' parts where the collective has parts
  int root = 0;
  bool in_place = true;  // where there is a choice: all_to_all never is, broadcast always
};

class RankCase {
 public:
  // kInvalidArgument names what is unknown; kOutOfMemory and kSystem come from allocate().
  static Result<RankCase> make(const CaseSpec& spec, int rank, int ranks);

  const Call& call() const { return call_; }
  // Whether the type holds all results exactly, for sum, prod, min and max of integers and floats.
  bool checkable() const;
  // Puts known values; `wrong` then says how many elements of the call's result are not as they must be.
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

  Status take_in_place(const std::string& memory);
  Status take_apart(const std::string& memory);
  size_t input_count() const;
  size_t output_count() const;
  int64_t value(int rank, size_t index) const;
  int64_t combined(size_t index) const;
  int64_t before(size_t index) const;
  int64_t after(size_t index) const;
  bool is_root() const { return rank_ == call_.root; }

  Call call_;
  Buffer data_;
  Buffer other_;  // receives, where the call is not in place
  int rank_ = 0;
  int ranks_ = 1;
  size_t total_ = 0;  // elements
  size_t part_ = 0;
};

}  // namespace collective_ops::perf
