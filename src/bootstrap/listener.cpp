#include "bootstrap/listener.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/job.h"
#include "bootstrap/process.h"
#include "bootstrap/wire.h"

namespace collective_ops {
namespace {

constexpr int kBacklog = 4096;             // the kernel lowers it to net.core.somaxconn
constexpr int64_t kGraceNs = 500'000'000;  // a killed process still holds its name until it has ended
constexpr auto kPoll = std::chrono::milliseconds(10);

struct Holder {
  pid_t pid = 0;  // 0: not known
  uid_t uid = 0;
};

// Who listens under a name; nothing where nobody does.
std::optional<Holder> holder_of(const std::string& name) {
  const Descriptor probe = wire::new_socket();
  const auto address = wire::abstract_address(name);
  if (::connect(probe.get(), address.get(), address.length) != 0) {
    if (errno == EAGAIN) return Holder{0, ::getuid()};  // its queue is full
    return std::nullopt;
  }
  const auto who = wire::credentials(probe.get());
  return who ? Holder{who->pid, who->uid} : Holder{0, ::getuid()};
}

Status duplicate(const std::string& job, int rank, const Holder& holder) {
  std::string whom = holder.pid == 0 ? "another process" : fmt::format("process {}", holder.pid);
  if (holder.pid == ::getpid()) whom = "this process";
  const auto state = read_process(holder.pid);
  if (holder.pid != 0 && (!state || state->dead()))
    whom = fmt::format("a child of process {}, which has ended,", holder.pid);
  return Status(
      ErrorCode::kDuplicateRank,
      fmt::format("joining as rank {} of job \"{}\": {} already is rank {} of it. Give each process its own "
                  "RANK; end the earlier job, or finalize its group, before the next one; two jobs under one "
                  "parent process need different values of COLLECTIVE_OPS_JOB_ID",
                  rank, job, whom, rank));
}

bool is_ending(pid_t pid) {
  const auto state = read_process(pid);
  return !state || state->dead() || state->exiting;
}

}  // namespace

Result<PrivateDescriptor> claim_rank(const std::string& job, int rank, int64_t deadline_ns) {
  const std::string name = socket_name(job, rank);
  const auto address = wire::abstract_address(name);
  const int64_t begin = monotonic_ns();
  for (;;) {
    PrivateDescriptor listener(wire::new_socket());
    if (listener.get() >= 0 && ::bind(listener.get(), address.get(), address.length) == 0 &&
        ::listen(listener.get(), kBacklog) == 0) {
      return listener;
    }
    if (listener.get() < 0 || errno != EADDRINUSE) {
      return Status(ErrorCode::kSystem,
                    fmt::format("joining as rank {}: no unix socket: {}; check ulimit -n and the "
                                "container's system call filter",
                                rank, std::strerror(errno)));
    }
    const auto holder = holder_of(name);
    if (holder && holder->uid != ::getuid()) {
      return Status(ErrorCode::kRendezvous,
                    fmt::format("joining as rank {}: user {} (process {}) holds the socket "
                                "name of this job; set COLLECTIVE_OPS_JOB_ID to another value",
                                rank, holder->uid, holder->pid));
    }
    const int64_t now = monotonic_ns();
    const bool living = holder && (holder->pid == 0 || !is_ending(holder->pid));
    const bool own = holder && holder->pid == ::getpid();
    if (own || (living && now - begin >= kGraceNs) || now >= deadline_ns) {
      return duplicate(job, rank, holder.value_or(Holder{0, ::getuid()}));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace collective_ops
