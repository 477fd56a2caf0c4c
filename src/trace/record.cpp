#include "trace/record.h"

#include <array>

namespace collective_ops {
namespace {

constexpr std::array<std::string_view, kTracePathCount> kPaths = {"none", "inline", "staged", "direct",
                                                                  "read", "messages"};

}  // namespace

std::string_view name_of(TracePath path) { return kPaths[static_cast<size_t>(path)]; }

}  // namespace collective_ops
