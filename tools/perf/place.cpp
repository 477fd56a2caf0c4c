#include "place.h"

#include <fmt/format.h>

#include "bootstrap/launch.h"

namespace collective_ops::perf {

Result<Place> find_place(const std::function<std::string(std::string_view)>& variable) {
  auto launched = find_launched(variable);
  if (!launched.ok()) return launched.status();
  if (!*launched) return Place{};
  if ((*launched)->on_several_hosts()) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("the {} ranks of this job are on several hosts; start all of them on one",
                              (*launched)->world_size));
  }
  return Place{(*launched)->rank, (*launched)->world_size};
}

}  // namespace collective_ops::perf
