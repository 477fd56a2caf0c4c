#include "bootstrap/mailbox.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/job.h"
#include "bootstrap/wire.h"

namespace collective_ops {
namespace {

constexpr int64_t kSendNs = 10'000'000'000;    // for a receiver whose queue is full
constexpr int64_t kSilenceNs = 1'000'000'000;  // a connection that says nothing is a stranger's
constexpr int64_t kSliceNs = 5'000'000;  // between two looks at `interrupted`, and at what other threads took
constexpr size_t kMaxSilent = 256;

// In front of the header of every message.
struct MailPrefix {
  uint64_t secret[2] = {0, 0};
  int32_t rank = 0;
  int32_t reserved = 0;
};

}  // namespace

struct Mailbox::Impl {
  struct Connection {
    Descriptor fd;
    ucred who{};
    int64_t silent_until_ns = 0;
  };

  explicit Impl(Config given) : config(std::move(given)) {}

  const Config config;
  std::mutex mutex;
  std::vector<Connection> connections;  // accepted, their message not read yet
  std::deque<Message> kept;
  bool starved = false;  // no descriptor was left for something that came

  // Everything that has arrived goes to `kept`. Never blocks.
  void collect() {
    std::erase_if(connections, [this](const Connection& connection) {
      return read_from(connection) || monotonic_ns() >= connection.silent_until_ns;
    });
    for (;;) {
      Connection connection{
          Descriptor(::accept4(config.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
          {},
          monotonic_ns() + kSilenceNs};
      if (!connection.fd.valid()) {
        starved |= errno == EMFILE || errno == ENFILE;
        return;
      }
      const auto who = wire::credentials(connection.fd.get());
      if (!who || who->uid != ::getuid()) continue;
      connection.who = *who;
      if (!read_from(connection) && connections.size() < kMaxSilent)
        connections.push_back(std::move(connection));
    }
  }

  // False while it says nothing yet.
  bool read_from(const Connection& connection) {
    wire::Frame frame;
    const auto received = wire::receive(connection.fd.get(), frame);
    if (received == wire::Received::kFrame) keep(frame, connection.who.pid);
    starved |= received == wire::Received::kNoDescriptors;
    return received != wire::Received::kNothing;
  }

  // Only from a member: the secret, and the process that the roster names.
  void keep(wire::Frame& frame, pid_t sender) {
    const auto prefix = wire::front<MailPrefix>(frame.body);
    if (frame.kind != wire::Kind::kMail || !prefix) return;
    if (prefix->secret[0] != config.secret[0] || prefix->secret[1] != config.secret[1]) return;
    if (prefix->rank < 0 || static_cast<size_t>(prefix->rank) >= config.members.size()) return;
    if (config.members[static_cast<size_t>(prefix->rank)] != sender) return;
    frame.body.erase(frame.body.begin(), frame.body.begin() + sizeof(MailPrefix));
    kept.push_back({prefix->rank, std::move(frame.body), std::move(frame.fd)});
  }

  std::optional<Message> take(const std::function<bool(const Message&)>& wanted) {
    const auto found = std::find_if(kept.begin(), kept.end(), wanted);
    if (found == kept.end()) return std::nullopt;
    Message message = std::move(*found);
    kept.erase(found);
    return message;
  }

  void wait(int64_t until_ns) {
    std::vector<pollfd> polled = {{config.listener.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex);
      for (const auto& connection : connections) polled.push_back({connection.fd.get(), POLLIN, 0});
    }
    ::poll(polled.data(), polled.size(), wire::poll_timeout(until_ns));
  }

  Status peer_left(int rank) const {
    return Status(ErrorCode::kPeerLost,
                  fmt::format("sending memory to rank {} (process {}): it has left the group", rank,
                              config.members[static_cast<size_t>(rank)]));
  }
};

Mailbox::Mailbox(Config config) : impl_(std::make_unique<Impl>(std::move(config))) {}
Mailbox::~Mailbox() = default;

Status Mailbox::send(int rank, std::span<const std::byte> header, int fd) {
  const Config& config = impl_->config;
  if (rank < 0 || static_cast<size_t>(rank) >= config.members.size() || header.size() > kMaxMailHeader) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("mail of {} bytes to rank {}: expected up to {} bytes, rank 0 to {}",
                              header.size(), rank, kMaxMailHeader, config.members.size() - 1));
  }
  const MailPrefix prefix{{config.secret[0], config.secret[1]}, config.rank, 0};
  const auto head = wire::bytes_of(prefix);
  std::vector<std::byte> body(head.begin(), head.end());
  body.insert(body.end(), header.begin(), header.end());

  const Descriptor socket = wire::new_socket();
  if (!socket.valid()) {
    return Status(ErrorCode::kSystem, fmt::format("sending memory to rank {}: no socket: {}; raise ulimit -n",
                                                  rank, std::strerror(errno)));
  }
  const auto address = wire::abstract_address(socket_name(config.job, rank));
  const int64_t deadline = monotonic_ns() + kSendNs;
  while (::connect(socket.get(), address.get(), address.length) != 0) {
    if (errno != EAGAIN && errno != EINTR) return impl_->peer_left(rank);
    if (monotonic_ns() >= deadline) {
      return Status(ErrorCode::kTimeout,
                    fmt::format("sending memory to rank {}: its queue was full for {} s; is it "
                                "stopped?",
                                rank, kSendNs / 1'000'000'000));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const auto who = wire::credentials(socket.get());
  if (!who || who->uid != ::getuid() || who->pid != config.members[static_cast<size_t>(rank)]) {
    return impl_->peer_left(rank);  // its name belongs to somebody else now
  }
  if (!wire::send(socket.get(), wire::Kind::kMail, body, fd)) {
    if (errno == ETOOMANYREFS) {
      return Status(ErrorCode::kSystem,
                    "sending memory: too many descriptors are on their way; raise ulimit -n");
    }
    return impl_->peer_left(rank);
  }
  return Status();
}

Result<Message> Mailbox::receive(const std::function<bool(const Message&)>& wanted, int64_t deadline_ns,
                                 const std::function<Status()>& interrupted) {
  for (;;) {
    {
      const std::lock_guard lock(impl_->mutex);
      impl_->collect();
      if (auto message = impl_->take(wanted)) return std::move(*message);
      if (std::exchange(impl_->starved, false)) {
        return Status(ErrorCode::kSystem,
                      "receiving memory of a peer: this process may open no more files; raise "
                      "ulimit -n, or close files");
      }
    }
    if (interrupted) {
      if (Status status = interrupted(); !status.ok()) return status;
    }
    const int64_t now = monotonic_ns();
    if (now >= deadline_ns)
      return Status(ErrorCode::kTimeout, "waiting for memory of a peer: it did not come in time");
    impl_->wait(std::min(deadline_ns, now + kSliceNs));
  }
}

}  // namespace collective_ops
