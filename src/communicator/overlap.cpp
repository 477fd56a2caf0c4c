#include "communicator/overlap.h"

#include <numeric>
#include <span>

#include <fmt/format.h>

namespace collective_ops {
namespace {

// Where a rank's own part begins within the buffer that holds everybody's.
size_t own_offset(std::span<const size_t> counts, size_t part_bytes, const Call& call, int rank) {
  const auto before = static_cast<size_t>(rank);
  if (counts.size() <= before) return before * part_bytes;
  return std::accumulate(counts.begin(), counts.begin() + rank, size_t{0}) * size_of(call.type);
}

}  // namespace

Status check_overlap(const Call& call, const CallBytes& bytes, int rank) {
  const auto* send = static_cast<const std::byte*>(call.send);
  const auto* recv = static_cast<const std::byte*>(call.recv);
  if (send == nullptr || recv == nullptr) return {};
  if (send >= recv + bytes.output || recv >= send + bytes.input) return {};
  if (send == recv && bytes.input == bytes.output && call.collective != Collective::kAllToAll &&
      call.collective != Collective::kAllToAllV) {
    return {};
  }
  if (bytes.output > bytes.input && send == recv + own_offset(call.recv_counts, bytes.input, call, rank))
    return {};
  if (bytes.input > bytes.output && recv == send + own_offset(call.send_counts, bytes.output, call, rank))
    return {};
  return {
      ErrorCode::kInvalidArgument,
      fmt::format(
          "{}: the buffers overlap (send: {} bytes, recv: {} bytes, {} apart). Give separate memory, or for "
          "in-place use the same memory or this rank's own part of the larger one; all_to_all is never in "
          "place",
          name_of(call.collective), bytes.input, bytes.output, recv - send)};
}

}  // namespace collective_ops
