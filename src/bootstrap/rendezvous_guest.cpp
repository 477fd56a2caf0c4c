// Every rank but 0: reaches rank 0 by name, says who it is, and does what it is told.
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/job.h"
#include "bootstrap/rendezvous_internal.h"

namespace collective_ops::rendezvous {
namespace {

constexpr int64_t kAnswerNs = 1'000'000'000;   // for rank 0's last words after our timeout
constexpr int64_t kFinishNs = 10'000'000'000;  // for the steps after the roster
constexpr int64_t kSliceNs = 100'000'000;      // between two looks at `interrupted`

class Guest {
 public:
  explicit Guest(const Context& context) : context_(context), deadline_ns_(context.deadline_ns) {}

  Result<Gathered> run() {
    // Rank 0 is often a moment behind: ranks begin together.
    auto pause = std::chrono::microseconds(20);
    for (;;) {
      if (connect()) {
        if (Status status = check_user(); !status.ok()) return status;
        auto outcome = talk();
        if (outcome) return std::move(*outcome);
      }
      if (monotonic_ns() >= deadline_ns_) return host_missing();
      if (Status status = context_.interrupted(); !status.ok()) return status;
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds(20));
    }
  }

 private:
  bool connect() {
    socket_ = wire::new_socket();
    const auto address = wire::abstract_address(socket_name(context_.job, 0));
    return ::connect(socket_.get(), address.get(), address.length) == 0;
  }

  Status check_user() {
    const auto who = wire::credentials(socket_.get());
    host_pid_ = who ? who->pid : 0;
    if (who && who->uid == ::getuid()) return Status();
    return Status(
        ErrorCode::kRendezvous,
        fmt::format("joining as rank {}: a process of another user holds rank 0's socket name of this job; "
                    "set COLLECTIVE_OPS_JOB_ID to another value",
                    context_.rank));
  }

  // Nothing: rank 0's socket closed before it noted us (it belonged to an earlier group); try again.
  std::optional<Result<Gathered>> talk() {
    if (!wire::send(socket_.get(), wire::Kind::kHello, wire::bytes_of(context_.hello()))) return std::nullopt;
    bool welcome = false;
    for (;;) {
      const int64_t slice = std::min(deadline_ns_, monotonic_ns() + kSliceNs);
      if (!wire::wait_readable(socket_.get(), slice)) {
        if (Status status = context_.interrupted(); !status.ok()) return Result<Gathered>(status);
        if (monotonic_ns() >= deadline_ns_) return Result<Gathered>(give_up(welcome));
        continue;
      }
      wire::Frame frame;
      const auto received = wire::receive(socket_.get(), frame);
      if (received == wire::Received::kNothing) continue;
      if (received == wire::Received::kNoDescriptors) {
        const Status status(ErrorCode::kSystem,
                            fmt::format("joining as rank {}: this process may open no more files; "
                                        "raise ulimit -n, or close files",
                                        context_.rank));
        wire::send(socket_.get(), wire::Kind::kFailure, wire::failure_body(status));
        return Result<Gathered>(status);
      }
      if (received != wire::Received::kFrame) {
        if (welcome) return Result<Gathered>(host_lost());
        return std::nullopt;
      }
      if (frame.kind == wire::Kind::kWelcome) welcome = true;
      if (frame.kind == wire::Kind::kFailure) return Result<Gathered>(wire::failure_of(frame.body));
      if (frame.kind == wire::Kind::kGo && !gathered_.peers.empty())
        return Result<Gathered>(std::move(gathered_));
      if (frame.kind == wire::Kind::kRoster) {
        Status status = take_roster(frame);
        if (!status.ok()) {
          wire::send(socket_.get(), wire::Kind::kFailure, wire::failure_body(status));
          return Result<Gathered>(status);
        }
        wire::send(socket_.get(), wire::Kind::kConfirm);
        deadline_ns_ = std::max(deadline_ns_, monotonic_ns() + kFinishNs);
      }
    }
  }

  Status take_roster(wire::Frame& frame) {
    const auto header = wire::front<wire::RosterHeader>(frame.body);
    const size_t count = static_cast<size_t>(context_.world_size);
    if (!header || header->world_size != context_.world_size || !frame.fd.valid() ||
        frame.body.size() != sizeof(wire::RosterHeader) + count * sizeof(wire::RosterEntry)) {
      return Status(ErrorCode::kInternal,
                    fmt::format("joining as rank {}: rank 0 sent a roster that does not fit", context_.rank));
    }
    std::vector<wire::RosterEntry> roster(count);
    std::memcpy(roster.data(), frame.body.data() + sizeof(wire::RosterHeader),
                count * sizeof(wire::RosterEntry));
    auto control = SharedSegment::map(frame.fd.release());
    if (!control.ok()) return control.status();
    if (control->size() < context_.control_bytes) {
      return Status(ErrorCode::kInternal,
                    fmt::format("joining as rank {}: the control segment has {} bytes, {} are "
                                "needed",
                                context_.rank, control->size(), context_.control_bytes));
    }
    gathered_.control = std::move(*control);
    gathered_.peers = peers_of(roster);
    gathered_.secret[0] = header->secret[0];
    gathered_.secret[1] = header->secret[1];
    return Status();
  }

  // Rank 0 knows who is missing, and tells all.
  Status give_up(bool welcome) {
    if (welcome) {
      wire::send(socket_.get(), wire::Kind::kGiveUp, wire::bytes_of(context_.waited_seconds()));
      const int64_t until = monotonic_ns() + kAnswerNs;
      while (wire::wait_readable(socket_.get(), until)) {
        wire::Frame frame;
        const auto received = wire::receive(socket_.get(), frame);
        if (received == wire::Received::kFrame && frame.kind == wire::Kind::kFailure) {
          return wire::failure_of(frame.body);
        }
        if (received == wire::Received::kClosed) break;
      }
    }
    return Status(
        ErrorCode::kRendezvous,
        fmt::format("joining job \"{}\": rank 0 (process {}) is there, but did not answer rank {} for {:.1f} "
                    "s: it is stopped or busy, or already member of an earlier group of this job (finalize "
                    "that first, or set COLLECTIVE_OPS_JOB_ID)",
                    context_.job, host_pid_, context_.rank, context_.waited_seconds()));
  }

  Status host_lost() const {
    const auto state = read_process(host_pid_);
    const bool alive = state && !state->dead();
    return Status(
        ErrorCode::kRendezvous,
        fmt::format("joining job \"{}\": rank 0 (process {}) {} while rank {} waited for the group; see its "
                    "own output for the reason",
                    context_.job, host_pid_, alive ? "left" : "died", context_.rank));
  }

  // Without rank 0, who else is missing shows in the names that nobody holds.
  Status host_missing() const {
    std::set<int> missing;
    for (int rank = 0; rank < context_.world_size; ++rank) {
      if (rank == context_.rank) continue;
      const Descriptor probe = wire::new_socket();
      const auto address = wire::abstract_address(socket_name(context_.job, rank));
      if (::connect(probe.get(), address.get(), address.length) != 0) missing.insert(rank);
    }
    missing.insert(0);
    return missing_ranks(context_, context_.rank, context_.waited_seconds(), missing, {});
  }

  const Context& context_;
  int64_t deadline_ns_;
  Descriptor socket_;
  pid_t host_pid_ = 0;
  Gathered gathered_;
};

}  // namespace

Result<Gathered> join_as_guest(const Context& context) { return Guest(context).run(); }

}  // namespace collective_ops::rendezvous
