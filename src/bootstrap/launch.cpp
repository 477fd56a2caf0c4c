#include "bootstrap/launch.h"

#include <array>
#include <charconv>

#include <fmt/format.h>

namespace collective_ops {
namespace {

struct Launcher {
  std::string_view name;
  std::string_view rank;
  std::string_view world_size;
  std::string_view local_size;
  std::string_view hosts;
};

// Of Slurm the variables of a step alone: those of the job stand in a batch script, too, which is no rank.
constexpr std::array kLaunchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", ""},
    Launcher{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", ""},
    Launcher{"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", ""},
    Launcher{"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", "SLURM_STEP_NUM_NODES"},
    Launcher{"msrun", "RANK_ID", "RANK_SIZE", "", ""},
};

constexpr int kDefaultPort = 29500;  // PyTorch's
constexpr int kSlurmPorts = 10000;   // from kFirstSlurmPort on
constexpr int kFirstSlurmPort = 20000;
constexpr int kHighestRootPort = 65535 - 16;

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<uint16_t> port_of(const Variable& variable, std::string_view name, int missing) {
  const std::string text = variable(name);
  const auto port = text.empty() ? std::optional(missing) : number(text);
  if (port && *port >= 1 && *port <= kHighestRootPort) return static_cast<uint16_t>(*port);
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("{}=\"{}\": expected a port from 1 to {}", name, text, kHighestRootPort));
}

Result<std::optional<RootPlace>> place_of(const Variable& variable, std::string_view host,
                                          std::string_view port_name, int missing) {
  auto port = port_of(variable, port_name, missing);
  if (!port.ok()) return port.status();
  const std::string name = variable(host);
  return std::optional(RootPlace{name, *port, fmt::format("{}={}, {}={}", host, name, port_name, *port)});
}

}  // namespace

Result<std::optional<Launched>> find_launched(const Variable& variable) {
  for (const Launcher& launcher : kLaunchers) {
    const std::string rank_text = variable(launcher.rank), size_text = variable(launcher.world_size);
    if (rank_text.empty() || size_text.empty()) continue;
    const auto rank = number(rank_text), size = number(size_text);
    if (!rank || !size || *size < 1 || *rank < 0 || *rank >= *size) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("{}={} {}={}: expected a rank below the number of ranks", launcher.rank,
                                rank_text, launcher.world_size, size_text));
    }
    Launched launched{std::string(launcher.name), *rank, *size, 0, 0};
    if (!launcher.local_size.empty()) launched.local_size = number(variable(launcher.local_size)).value_or(0);
    if (!launcher.hosts.empty()) launched.hosts = number(variable(launcher.hosts)).value_or(0);
    return std::optional(std::move(launched));
  }
  return std::optional<Launched>();
}

Result<std::optional<RootPlace>> find_root_place(const Variable& variable) {
  if (!variable("MASTER_ADDR").empty()) return place_of(variable, "MASTER_ADDR", "MASTER_PORT", kDefaultPort);
  if (!variable("MS_SCHED_HOST").empty()) {
    return place_of(variable, "MS_SCHED_HOST", "MS_SCHED_PORT", kDefaultPort);
  }
  const std::string nodes = variable("SLURM_STEP_NODELIST");
  const auto job = number(variable("SLURM_JOB_ID"));
  if (nodes.empty() || !job) return std::optional<RootPlace>();
  const std::string host = first_host(nodes);
  // Steps of one job that run at once use sixteen ports each.
  const int step = number(variable("SLURM_STEP_ID")).value_or(0);
  const int64_t port = kFirstSlurmPort + (int64_t{*job} * 160 + step % 10 * 16) % kSlurmPorts;
  return std::optional(
      RootPlace{host, static_cast<uint16_t>(port),
                fmt::format("{}, the first host of Slurm's step, and ports from {} on", host, port + 1)});
}

std::string first_host(std::string_view nodelist) {
  std::string name;
  for (size_t i = 0; i < nodelist.size() && nodelist[i] != ','; ++i) {
    if (nodelist[i] != '[') {
      name += nodelist[i];
      continue;
    }
    const size_t end = nodelist.find(']', i);
    const std::string_view range = nodelist.substr(i + 1, end == std::string_view::npos ? end : end - i - 1);
    name += range.substr(0, range.find_first_of(",-"));
    if (end == std::string_view::npos) break;
    i = end;
  }
  return name;
}

std::string launched_job(const Variable& variable) {
  if (const std::string id = variable("COLLECTIVE_OPS_JOB_ID"); !id.empty()) return "id " + id;
  if (const std::string id = variable("TORCHELASTIC_RUN_ID"); !id.empty()) {
    return fmt::format("torchrun {} restart {}", id, variable("TORCHELASTIC_RESTART_COUNT"));
  }
  if (const std::string id = variable("SLURM_JOB_ID"); !id.empty()) {
    return fmt::format("slurm {}.{}", id, variable("SLURM_STEP_ID"));
  }
  return "";
}

}  // namespace collective_ops
