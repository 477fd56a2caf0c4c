#include "place.h"

#include "bootstrap/launch.h"

namespace collective_ops::perf {

Result<Place> find_place(const std::function<std::string(std::string_view)>& variable) {
  auto launched = find_launched(variable);
  if (!launched.ok()) return launched.status();
  if (!*launched) return Place{};
  return Place{(*launched)->rank, (*launched)->world_size, (*launched)->local_size};
}

}  // namespace collective_ops::perf
