// One rank's events as columns: what every reader of a profile fills and every analysis reads.
// Times are int64 nanoseconds since 1970 (or since the profile's own zero where it knows no other); names
// are interned. Row i of all columns is one event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace collective_ops {

// Texts that several tables share, each kept once; any thread may add some.
class SharedTexts {
 public:
  std::string_view keep(std::string_view text);

 private:
  std::mutex mutex_;
  std::unordered_set<std::string> texts_;  // its nodes never move
};

// Texts, each kept once. Ids are dense and begin at 0; views stay valid as long as the table.
class NameTable {
 public:
  NameTable() = default;
  explicit NameTable(std::shared_ptr<SharedTexts> shared) : shared_(std::move(shared)) {}
  NameTable(NameTable&&) = default;
  NameTable& operator=(NameTable&&) = default;
  NameTable(const NameTable&) = delete;  // views of a copy would point into the original
  NameTable& operator=(const NameTable&) = delete;

  uint32_t intern(std::string_view text);
  std::string_view operator[](uint32_t id) const { return names_[id]; }
  size_t size() const { return names_.size(); }
  void close();  // frees what only intern() needs, which makes it anew if it is called again

 private:
  std::shared_ptr<SharedTexts> shared_;
  std::deque<std::string> own_;  // where nothing is shared; a deque: elements never move
  std::vector<std::string_view> names_;
  // Where each name stands, by its hash: a table of its own, since every event of a trace looks one up.
  struct Slot {
    uint32_t tag = 0;
    uint32_t id = UINT32_MAX;  // empty
  };
  void insert(uint64_t hash, uint32_t id);
  void grow();
  std::vector<Slot> slots_;  // a power of two, at most half of them in use
};

enum class EventKind : uint8_t {
  kOther,          // kept for completeness, in no sum
  kHostOperator,   // cpu_op
  kAnnotation,     // a range that the program named, ProfilerStep#N too
  kRuntime,        // a launch or another call into the device's runtime
  kKernel,         // computation on a device
  kCopy,           // copy or fill on a device
  kCommunication,  // a collective or a message, where it really runs: device kernel, or Gloo's own range
};

// What a communication event says of its call; -1 and kNoName where the profile does not say.
struct CallArguments {
  static constexpr uint32_t kNoName = UINT32_MAX;
  int64_t elements = -1;  // the larger of input and output
  int64_t sequence = -1;
  int64_t waited_ns = -1;  // measured by the communicator itself
  int32_t longest_wait_rank = -1;
  int32_t rank = -1;                      // where one file holds several
  int32_t source = -1, destination = -1;  // of a message
  uint32_t collective = kNoName;
  uint32_t type = kNoName;
  uint32_t group = kNoName;
};

struct EventTable {
  NameTable names;
  std::vector<int64_t> start_ns;
  std::vector<int64_t> duration_ns;
  std::vector<int64_t> correlation;  // joins a launch and what it launched; -1 without
  std::vector<uint32_t> name;
  std::vector<uint32_t> track;     // "process/thread" or "device/stream", a name
  std::vector<int32_t> arguments;  // row of `calls`, -1 without
  std::vector<EventKind> kind;
  std::vector<CallArguments> calls;

  size_t size() const { return start_ns.size(); }
  int64_t end_ns(size_t row) const { return start_ns[row] + duration_ns[row]; }
};

}  // namespace collective_ops
