#include "base/environment.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

namespace collective_ops {
namespace {

constexpr std::array kVariables = {
    EnvironmentVariable{"COLLECTIVE_OPS_JOB_ID", "",
                        "name of the job; needed where two jobs share one parent process"},
    EnvironmentVariable{"RANK", "", "this process's rank; set by the launcher or the shell loop"},
    EnvironmentVariable{"WORLD_SIZE", "", "number of ranks; set by the launcher or the shell loop"},
    EnvironmentVariable{"LOCAL_RANK", "", "set by launchers; the device where DEVICE_ID is unset"},
    EnvironmentVariable{"LOCAL_WORLD_SIZE", "",
                        "number of ranks on this host, set by launchers; `collective-ops doctor` reads it"},
    EnvironmentVariable{"DEVICE_ID", "", "this rank's card"},
    EnvironmentVariable{"DEVICE_IDS", "", "cards that `collective-ops run` starts one rank on each"},
    EnvironmentVariable{"OMP_NUM_THREADS", "",
                        "`collective-ops run` sets it to cores per rank where it is unset"},
    EnvironmentVariable{"PYTHONUNBUFFERED", "", "`collective-ops run` sets it, so that output shows at once"},
    EnvironmentVariable{"COLLECTIVE_OPS_TERMINAL", "",
                        "1: set by `collective-ops run` where its output is a terminal"},
    EnvironmentVariable{"TORCHELASTIC_RUN_ID", "", "set by torchrun; with the next three it names the job"},
    EnvironmentVariable{"TORCHELASTIC_RESTART_COUNT", "0", "set by torchrun"},
    EnvironmentVariable{"MASTER_ADDR", "",
                        "name or address of rank 0's host where ranks are on several (docs/hosts.md); set by "
                        "torchrun"},
    EnvironmentVariable{"MASTER_PORT", "", "rank 0 takes one of the 16 ports behind it; set by torchrun"},
    EnvironmentVariable{"OMPI_COMM_WORLD_RANK", "",
                        "set by Open MPI's mpirun; with the next two, this rank where RANK is unset"},
    EnvironmentVariable{"OMPI_COMM_WORLD_SIZE", "", "set by Open MPI's mpirun"},
    EnvironmentVariable{"OMPI_COMM_WORLD_LOCAL_SIZE", "", "set by Open MPI's mpirun"},
    EnvironmentVariable{"PMI_RANK", "", "the same, set by mpirun of MPICH and Intel MPI"},
    EnvironmentVariable{"PMI_SIZE", "", "set by mpirun of MPICH and Intel MPI"},
    EnvironmentVariable{"MPI_LOCALNRANKS", "", "set by mpirun of MPICH and Intel MPI"},
    EnvironmentVariable{"SLURM_PROCID", "", "the same, set by srun"},
    EnvironmentVariable{"SLURM_STEP_NUM_TASKS", "", "set by srun"},
    EnvironmentVariable{"SLURM_STEP_NUM_NODES", "", "set by srun"},
    EnvironmentVariable{"SLURM_STEP_NODELIST", "", "set by srun: rank 0's host is the first"},
    EnvironmentVariable{"SLURM_JOB_ID", "",
                        "set by srun; names the job, and its port where MASTER_ADDR is unset"},
    EnvironmentVariable{"SLURM_STEP_ID", "", "set by srun"},
    EnvironmentVariable{"RANK_ID", "", "the same, set by msrun, or given with a rank table"},
    EnvironmentVariable{"RANK_SIZE", "", "set by msrun, or given with a rank table"},
    EnvironmentVariable{"MS_SCHED_HOST", "", "set by msrun: rank 0's host"},
    EnvironmentVariable{"MS_SCHED_PORT", "", "set by msrun; as MASTER_PORT"},
    EnvironmentVariable{"RANK_TABLE_FILE", "",
                        "a rank table (version 1.0, 1.2 or 2.0) that says where ranks are"},
    EnvironmentVariable{
        "COLLECTIVE_OPS_SECRET", "",
        "what all ranks of a job on several hosts know and strangers do not (16 characters or more)"},
    EnvironmentVariable{
        "COLLECTIVE_OPS_SECRET_FILE", "",
        "a file with it that only its owner can read (default: ~/.config/collective-ops/secret)"},
    EnvironmentVariable{"COLLECTIVE_OPS_INSECURE", "0",
                        "1: several hosts without a secret, on a network that nobody else can reach"},
    EnvironmentVariable{"HCCL_IF_IP", "", "this host's address for other hosts"},
    EnvironmentVariable{
        "HCCL_SOCKET_IFNAME", "",
        "interfaces for other hosts: eth,ib (names that begin so), =eth0 (exactly), ^docker (all "
        "others)"},
    EnvironmentVariable{"HCCL_SOCKET_FAMILY", "", "AF_INET or AF_INET6: no other addresses (default: both)"},
    EnvironmentVariable{"HCCL_IF_BASE_PORT", "", "ranks listen on this port or one of the 31 behind it"},
    EnvironmentVariable{"HCCL_HOST_SOCKET_PORT_RANGE", "",
                        "ports that ranks listen on, such as 60000-60031,61000 (default: any)"},
    EnvironmentVariable{"HOME", "", "where the file with the secret is looked for"},
    EnvironmentVariable{"XDG_CACHE_HOME", "",
                        "where `collective-ops tune` keeps the machine's numbers (default ~/.cache)"},
    EnvironmentVariable{"ASCEND_HOME_PATH", "",
                        "folder of the Ascend toolkit, whose version `collective-ops doctor` shows"},
    EnvironmentVariable{"ASCEND_TOOLKIT_HOME", "", "the same, where ASCEND_HOME_PATH is not set"},
    EnvironmentVariable{"COLLECTIVE_OPS_TRACE", "0", "1: record every call and leave comm_trace.json"},
    EnvironmentVariable{"COLLECTIVE_OPS_TRACE_DIR", "",
                        "where trace files go (default: the working directory)"},
    EnvironmentVariable{"COLLECTIVE_OPS_PATH", "auto",
                        "auto, staged, direct or read: forces a data path, for tests"},
    EnvironmentVariable{"COLLECTIVE_OPS_ALGORITHM", "auto",
                        "auto, or the name of one of docs/algorithms.md: forces an algorithm, for tests"},
    EnvironmentVariable{"COLLECTIVE_OPS_CONNECTIONS", "2",
                        "TCP connections that two ranks of different hosts have for data (1 to 16)"},
    EnvironmentVariable{"COLLECTIVE_OPS_TUNING_TABLE", "",
                        "file that `collective-ops tune table` has written: which algorithm to take"},
    EnvironmentVariable{"COLLECTIVE_OPS_TUNER_PLUGIN", "",
                        "shared library that chooses (include/collective_ops/tuner_plugin.h)"},
    EnvironmentVariable{"TORCH_FR_BUFFER_SIZE", "2000",
                        "calls that the PyTorch backend keeps for a dump (0: none)"},
    EnvironmentVariable{
        "TORCH_FR_DUMP_TEMP_FILE", "",
        "name, with the rank behind it, of the dump that a failure of the PyTorch backend leaves"},
    EnvironmentVariable{
        "HCCL_ALGO", "",
        "level1:ring and others, of all or some collectives, are taken for small calls; see below"},
    EnvironmentVariable{"NCCL_ALGO", "", "where HCCL_ALGO is not set: Ring, Tree and PAT, likewise"},
    EnvironmentVariable{"HCCL_DETERMINISTIC", "false",
                        "false, true or strict: results are always deterministic; see below"},
    EnvironmentVariable{"HCCL_CONNECT_TIMEOUT", "120",
                        "seconds to wait for the other ranks at start (1 to 7200)"},
    EnvironmentVariable{"HCCL_EXEC_TIMEOUT", "1836", "seconds to wait inside a call (0: for ever)"},
};

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

std::string environment_text(std::string_view name) {
  for (const auto& variable : kVariables) {
    if (variable.name != name) continue;
    const char* text = std::getenv(std::string(name).c_str());
    return std::string(text != nullptr && *text != '\0' ? std::string_view(text) : variable.default_value);
  }
  return "";
}

namespace {

Result<int64_t> parsed(std::string_view name, std::string_view what, int64_t low, int64_t high) {
  const std::string text = environment_text(name);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{}=\"{}\": expected {} from {} to {}", name, text, what, low, high));
  }
  return value;
}

}  // namespace

Result<int64_t> environment_number(std::string_view name, int64_t low, int64_t high) {
  return parsed(name, "a whole number", low, high);
}

Result<std::chrono::seconds> environment_seconds(std::string_view name, int64_t low, int64_t high) {
  auto value = parsed(name, "whole seconds", low, high);
  if (!value.ok()) return value.status();
  return std::chrono::seconds(*value);
}

Result<bool> environment_flag(std::string_view name) {
  const std::string text = environment_text(name);
  if (text.empty() || text == "0" || text == "false" || text == "off") return false;
  if (text == "1" || text == "true" || text == "on") return true;
  return Status(ErrorCode::kInvalidArgument, fmt::format("{}=\"{}\": expected 0 or 1", name, text));
}

}  // namespace collective_ops
