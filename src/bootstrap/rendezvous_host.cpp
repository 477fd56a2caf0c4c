// Rank 0: collects the others, finds out what is wrong, and gives everyone the same answer.
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/rendezvous_internal.h"

namespace collective_ops::rendezvous {
namespace {

constexpr int64_t kSilenceNs = 1'000'000'000;  // a connection that says nothing is a stranger's
constexpr int64_t kSettleNs = 2'000'000'000;   // for late ranks to hear of a failure that is certain
constexpr int64_t kFinishNs = 10'000'000'000;  // for the steps after the roster
constexpr int64_t kSliceNs = 100'000'000;      // between two looks at `interrupted`
constexpr size_t kMaxStrangers = 64;

class Host {
 public:
  Host(const Context& context, const PrivateDescriptor& listener) : context_(context), listener_(listener) {
    hellos_[0] = context.hello();
  }

  Result<Gathered> run() {
    Gathered gathered;
    // Memory first, so that `collective-ops status` sees who has come; but a failure of it is told to all.
    const Status prepared = prepare(gathered);
    Status status = gather();
    if (status.ok()) status = prepared;
    if (status.ok()) status = introduce(gathered);
    if (!status.ok()) {
      tell_all(wire::Kind::kFailure, wire::failure_body(status));
      return status;
    }
    tell_all(wire::Kind::kGo, {});
    return gathered;
  }

 private:
  struct Connection {
    Descriptor fd;
    ucred who{};
    int rank = -1;  // until its hello
    int64_t silent_until_ns = 0;
    bool confirmed = false;
  };

  Status prepare(Gathered& gathered) {
    auto control = SharedSegment::create(context_.control_bytes, "the control segment", kControlSegmentName);
    if (!control.ok()) return control.status();
    gathered.control = std::move(*control);
    if (::getrandom(gathered.secret, sizeof(gathered.secret), 0) != sizeof(gathered.secret)) {
      return Status(ErrorCode::kSystem, fmt::format("joining: getrandom failed: {}", std::strerror(errno)));
    }
    return Status();
  }

  Status gather() {
    int64_t deadline = context_.deadline_ns;
    while (!everyone_said_hello()) {
      if (monotonic_ns() >= deadline) {
        return problem_.ok() ? missing_ranks(context_, 0, context_.waited_seconds(), missing(), duplicates_)
                             : final_problem();
      }
      if (Status status = step(deadline); !status.ok()) return status;
      if (!problem_.ok()) deadline = std::min(deadline, problem_since_ns_ + kSettleNs);
    }
    return problem_.ok() ? Status() : final_problem();
  }

  // The roster to all; then their confirmations.
  Status introduce(Gathered& gathered) {
    wire::RosterHeader header{{gathered.secret[0], gathered.secret[1]}, context_.world_size, 0};
    const auto head = wire::bytes_of(header);
    std::vector<std::byte> body(head.begin(), head.end());
    std::vector<wire::RosterEntry> roster;
    for (const auto& [rank, hello] : hellos_) roster.push_back({hello.start_time, hello.pid, 0});
    const auto entries = std::as_bytes(std::span(roster));
    body.insert(body.end(), entries.begin(), entries.end());
    for (auto& connection : connections_) {
      if (connection.rank < 0) continue;
      if (!wire::send(connection.fd.get(), wire::Kind::kRoster, body, gathered.control.fd()))
        return lost(connection);
    }
    gathered.peers = peers_of(roster);

    const int64_t deadline = std::max(context_.deadline_ns, monotonic_ns() + kFinishNs);
    while (!everyone_confirmed()) {
      if (monotonic_ns() >= deadline) return not_confirmed();
      if (Status status = step(deadline); !status.ok()) return status;
    }
    return Status();
  }

  // Waits for something to happen, and deals with it. A failure here is everyone's.
  Status step(int64_t deadline_ns) {
    std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
    int64_t until = std::min(deadline_ns, monotonic_ns() + kSliceNs);
    for (const auto& connection : connections_) {
      polled.push_back({connection.fd.get(), POLLIN, 0});
      if (connection.rank < 0) until = std::min(until, connection.silent_until_ns);
    }
    const int ready = ::poll(polled.data(), polled.size(), wire::poll_timeout(until));
    if (Status status = context_.interrupted(); !status.ok()) return status;
    if (ready < 0 && errno != EINTR) {
      return Status(ErrorCode::kSystem, fmt::format("joining: poll failed: {}", std::strerror(errno)));
    }
    for (size_t i = 0; ready > 0 && i + 1 < polled.size(); ++i) {
      if (polled[i + 1].revents == 0) continue;
      if (Status status = read_from(connections_[i]); !status.ok()) return status;
    }
    if (ready > 0 && polled[0].revents != 0) accept_all();
    drop_silent();
    return Status();
  }

  void accept_all() {
    for (;;) {
      Descriptor fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd.valid()) return;
      const auto who = wire::credentials(fd.get());
      if (!who || who->uid != ::getuid()) continue;  // another user's: not heard
      connections_.push_back({std::move(fd), *who, -1, monotonic_ns() + kSilenceNs, false});
    }
  }

  void drop_silent() {
    const int64_t now = monotonic_ns();
    size_t strangers = 0;
    for (const auto& connection : connections_) strangers += connection.rank < 0 ? 1 : 0;
    std::erase_if(connections_, [&](const Connection& connection) {
      if (!connection.fd.valid()) return true;
      if (connection.rank >= 0) return false;
      return now >= connection.silent_until_ns || strangers-- > kMaxStrangers + hellos_.size();
    });
  }

  Status read_from(Connection& connection) {
    wire::Frame frame;
    const auto received = wire::receive(connection.fd.get(), frame);
    if (received == wire::Received::kNothing) return Status();
    if (received != wire::Received::kFrame) {
      connection.fd.reset();
      return connection.rank < 0 || !problem_.ok() ? Status() : lost(connection);
    }
    switch (frame.kind) {
      case wire::Kind::kHello:
        return take_hello(connection, frame);
      case wire::Kind::kDuplicate:
        if (const auto hello = wire::front<wire::Hello>(frame.body)) {
          if (duplicates_.size() < kMaxStrangers)
            duplicates_.push_back({hello->start_time, connection.who.pid, 0});
        }
        connection.fd.reset();
        return Status();
      case wire::Kind::kConfirm:
        connection.confirmed = connection.rank >= 0;
        return Status();
      case wire::Kind::kGiveUp:
        if (connection.rank < 0 || !problem_.ok()) return Status();
        return missing_ranks(context_, connection.rank, wire::front<double>(frame.body).value_or(0),
                             missing(), duplicates_);
      case wire::Kind::kFailure:
        return connection.rank < 0 ? Status() : wire::failure_of(frame.body);
      default:
        connection.fd.reset();
        return connection.rank < 0 ? Status() : lost(connection);
    }
  }

  Status take_hello(Connection& connection, const wire::Frame& frame) {
    const auto hello = wire::front<wire::Hello>(frame.body);
    if (!hello || hello->rank < 0 || hello->rank >= kMaxRanksPerHost || connection.rank >= 0) {
      connection.fd.reset();
      return Status();
    }
    if (hello->pid != connection.who.pid) {
      return Status(
          ErrorCode::kRendezvous,
          fmt::format("joining: rank {} says it is process {}, but is {} here: it runs in another PID "
                      "namespace. Start all ranks of one host in one container, or share its PID namespace",
                      hello->rank, hello->pid, connection.who.pid));
    }
    if (hellos_.count(hello->rank) != 0) {
      const Status status(
          ErrorCode::kDuplicateRank,
          fmt::format("joining job \"{}\": process {} already is rank {}; give each process its own "
                      "RANK, and two jobs under one parent process different values of "
                      "COLLECTIVE_OPS_JOB_ID",
                      context_.job, hellos_[hello->rank].pid, hello->rank));
      wire::send(connection.fd.get(), wire::Kind::kFailure, wire::failure_body(status));
      duplicates_.push_back({hello->start_time, hello->pid, 0});
      connection.fd.reset();
      return Status();
    }
    connection.rank = hello->rank;
    hellos_[hello->rank] = *hello;
    note_problem(*hello);
    wire::send(connection.fd.get(), wire::Kind::kWelcome);
    return Status();
  }

  // Kept until the others have come, so that they hear of it too.
  void note_problem(const wire::Hello& hello) {
    const wire::Hello& own = hellos_[0];
    const bool other_size = hello.world_size != own.world_size;
    const bool other_build = std::memcmp(hello.version, own.version, sizeof(own.version)) != 0 ||
                             (!other_size && hello.control_bytes != own.control_bytes);
    if ((!other_size && !other_build) || !problem_.ok()) return;
    problem_ = Status(other_build ? ErrorCode::kVersionMismatch : ErrorCode::kRendezvous, "");
    problem_since_ns_ = monotonic_ns();
  }

  Status final_problem() const {
    return problem_.code() == ErrorCode::kVersionMismatch ? differing_builds(hellos_)
                                                          : differing_world_sizes(hellos_);
  }

  Status lost(const Connection& connection) const {
    const auto state = read_process(connection.who.pid);
    const bool alive = state && !state->dead();
    return Status(
        ErrorCode::kRendezvous,
        fmt::format(
            "joining job \"{}\": rank {} (process {}) {} while the ranks waited for each other ({} of "
            "{} had come); see its own output for the reason",
            context_.job, connection.rank, connection.who.pid, alive ? "left" : "died", hellos_.size(),
            context_.world_size));
  }

  Status not_confirmed() const {
    std::set<int> silent;
    for (const auto& connection : connections_) {
      if (connection.rank >= 0 && !connection.confirmed) silent.insert(connection.rank);
    }
    return Status(ErrorCode::kRendezvous,
                  fmt::format("joining job \"{}\": {} came but did not confirm; stopped or "
                              "without processor time?",
                              context_.job, list_ranks(silent)));
  }

  std::set<int> missing() const {
    std::set<int> ranks;
    for (int rank = 1; rank < context_.world_size; ++rank) {
      if (hellos_.count(rank) == 0) ranks.insert(rank);
    }
    return ranks;
  }

  bool everyone_said_hello() const {
    int expected = 0;
    for (const auto& [rank, hello] : hellos_) expected = std::max(expected, hello.world_size);
    return static_cast<int>(hellos_.size()) >= expected;
  }

  bool everyone_confirmed() const {
    return std::all_of(connections_.begin(), connections_.end(), [](const Connection& connection) {
      return connection.rank < 0 || connection.confirmed;
    });
  }

  void tell_all(wire::Kind kind, const std::vector<std::byte>& body) {
    for (const auto& connection : connections_) {
      if (connection.rank >= 0 && connection.fd.valid()) wire::send(connection.fd.get(), kind, body);
    }
  }

  const Context& context_;
  const PrivateDescriptor& listener_;
  std::vector<Connection> connections_;
  std::map<int, wire::Hello> hellos_;  // by rank, our own too
  std::vector<wire::RosterEntry> duplicates_;
  Status problem_;
  int64_t problem_since_ns_ = 0;
};

}  // namespace

Result<Gathered> join_as_host(const Context& context, const PrivateDescriptor& listener) {
  return Host(context, listener).run();
}

}  // namespace collective_ops::rendezvous
