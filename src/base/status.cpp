#include <collective_ops/status.h>

#include <array>

namespace collective_ops {

std::string_view name_of(ErrorCode code) {
  static constexpr std::array<std::string_view, kErrorCodeCount> kNames = {
      "ok",         "invalid_argument", "unsupported_type", "mismatch",
      "timeout",    "peer_lost",        "group_broken",     "out_of_memory",
      "rendezvous", "duplicate_rank",   "version_mismatch", "not_initialized",
      "system",     "internal",         "interrupted",
  };
  return kNames[static_cast<size_t>(code)];
}

}  // namespace collective_ops
