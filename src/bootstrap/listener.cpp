#include "bootstrap/listener.h"

#include <fcntl.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
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

// Descriptor + 1 of each listener; 0 is a free place.
std::array<std::atomic<int>, 256> listeners{};

// Only calls that are allowed between fork and exec. The number stays taken, by a socket without a
// name, since the child's copy of the owner will close it.
void close_in_child() {
  for (auto& place : listeners) {
    const int fd = place.load() - 1;
    if (fd < 0) continue;
    const int empty = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (empty < 0) {
      ::close(fd);
      continue;
    }
    ::dup3(empty, fd, O_CLOEXEC);
    ::close(empty);
  }
}

void replace(int from, int to) {
  for (auto& place : listeners) {
    int expected = from;
    if (place.compare_exchange_strong(expected, to)) return;
  }
}

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

Listener::Listener(Descriptor fd) : fd_(std::move(fd)) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, close_in_child);
  (void)registered;
  if (fd_.valid()) replace(0, fd_.get() + 1);
}

Listener& Listener::operator=(Listener&& other) noexcept {
  if (this != &other) {
    forget();
    fd_ = std::move(other.fd_);
  }
  return *this;
}

Listener::~Listener() { forget(); }

void Listener::forget() {
  if (!fd_.valid()) return;
  replace(fd_.get() + 1, 0);
  fd_.reset();
}

Result<Listener> claim_rank(const std::string& job, int rank, int64_t deadline_ns) {
  const std::string name = socket_name(job, rank);
  const auto address = wire::abstract_address(name);
  const int64_t begin = monotonic_ns();
  for (;;) {
    Listener listener(wire::new_socket());
    if (listener.fd() >= 0 && ::bind(listener.fd(), address.get(), address.length) == 0 &&
        ::listen(listener.fd(), kBacklog) == 0) {
      return listener;
    }
    if (listener.fd() < 0 || errno != EADDRINUSE) {
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
