#include "bootstrap/job.h"

#include <unistd.h>

#include <cstdint>

#include <fmt/format.h>

#include "base/environment.h"
#include "bootstrap/process.h"

namespace collective_ops {
namespace {

constexpr size_t kMaxJobId = 1024;  // characters

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 14695981039346656037ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

std::string torchrun_identity() {
  const std::string id = environment_text("TORCHELASTIC_RUN_ID");
  if (id.empty()) return "";
  return fmt::format("torchrun {} at {}:{} restart {}", id, environment_text("MASTER_ADDR"),
                     environment_text("MASTER_PORT"), environment_text("TORCHELASTIC_RESTART_COUNT"));
}

}  // namespace

Result<std::string> job_identity(const ConnectOptions& options) {
  const std::string id = !options.job_id.empty() ? options.job_id : environment_text("COLLECTIVE_OPS_JOB_ID");
  if (id.size() > kMaxJobId || id.find('\0') != std::string::npos) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("job id of {} characters: expected up to {}, none of them zero", id.size(), kMaxJobId));
  }
  if (!id.empty()) return "id " + id;
  if (const std::string torchrun = torchrun_identity(); !torchrun.empty()) return torchrun;
  const pid_t parent = ::getppid();
  const auto process = read_process(parent);
  return fmt::format("user {} under process {} started at {}", ::getuid(), parent,
                     process ? process->start_time : 0);
}

std::string socket_name(const std::string& job, int rank) {
  return fmt::format("collective-ops/{}/{:016x}/{}", ::getuid(), fnv1a(job), rank);
}

}  // namespace collective_ops
