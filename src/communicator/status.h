// What a group's shared memory says about its ranks, read from outside and without disturbing them:
// the source of `collective-ops status`. The bytes come from another process, so nothing in them is
// believed before it is checked, and a rank may change them while they are copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <collective_ops/status.h>

namespace collective_ops {

enum class Activity : uint8_t {
  kAbsent,   // has not joined yet
  kOutside,  // between two calls, or before the first
  kWaiting,  // in a call, sleeping until another rank has done its part
  kBusy,     // in a call, moving bytes or about to wait
  kLeft,     // has left in an orderly way
};
std::string_view name_of(Activity activity);  // "absent", "outside", "waiting", "busy", "left"

struct RankStatus {
  int rank = 0;        // in the group
  int world_rank = 0;  // equal where the group is the world
  int64_t pid = 0;     // in the rank's own PID namespace; 0: not joined
  Activity activity = Activity::kAbsent;
  uint64_t issued = 0;    // calls begun
  uint64_t finished = 0;  // calls completed
  std::string call;       // of call `issued`: "all_reduce of 1000 float32, op sum"; "" where not announced
  int waits_for = -1;     // while kWaiting: the rank
  // Of the world's ranks: what else they wait for at length, in messages and other groups; "waits in recv of
  // 10 float32 ...", or "".
  std::string elsewhere;
  int64_t since_ns = 0;  // while kWaiting: CLOCK_MONOTONIC of when its waiting in this call began
};

struct GroupStatus {
  std::string job;  // "" while rank 0 has not joined; `ranks` is empty then
  uint32_t id = 0;  // of the group; 0: all ranks of the job
  std::string name;
  std::vector<RankStatus> ranks;
  Status failure;  // why the group is broken; ok: it is not
};

// Bytes from the front of a control segment that read_status() may want, whatever the number of ranks.
size_t status_bytes();

// `bytes` is a copy of the front of a control segment. kInvalidArgument: none, cut off, damaged, or
// of a build with another layout.
Result<GroupStatus> read_status(std::span<const std::byte> bytes);

}  // namespace collective_ops
