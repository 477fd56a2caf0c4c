#include "place.h"

#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace collective_ops::perf {
namespace {

struct Launcher {
  std::string_view rank;
  std::string_view world_size;
  std::string_view local_size;  // ranks of this host; empty: it does not say
  std::string_view hosts;
};

// Of Slurm the variables of a step alone: those of the job stand in a batch script, too, which is no rank.
constexpr std::array kLaunchers = {
    Launcher{"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", ""},
    Launcher{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", ""},
    Launcher{"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", ""},
    Launcher{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", "SLURM_STEP_NUM_NODES"},
};

std::optional<int> number(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

Result<Place> find_place(const std::function<std::string(std::string_view)>& variable) {
  for (const Launcher& launcher : kLaunchers) {
    const std::string rank_text = variable(launcher.rank), size_text = variable(launcher.world_size);
    if (rank_text.empty() || size_text.empty()) continue;
    const auto rank = number(rank_text), size = number(size_text);
    if (!rank || !size || *size < 1 || *rank < 0 || *rank >= *size) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("{}={} {}={}: expected a rank below the number of ranks", launcher.rank,
                                rank_text, launcher.world_size, size_text));
    }
    const auto local = launcher.local_size.empty() ? size : number(variable(launcher.local_size));
    const auto hosts = launcher.hosts.empty() ? std::optional(1) : number(variable(launcher.hosts));
    if (local.value_or(*size) != *size || hosts.value_or(1) != 1) {
      return Status(
          ErrorCode::kInvalidArgument,
          fmt::format("the {} ranks of this job are on several hosts; start all of them on one", *size));
    }
    return Place{*rank, *size};
  }
  return Place{};
}

}  // namespace collective_ops::perf
