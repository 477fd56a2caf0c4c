#include "bootstrap/door.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/cluster.h"

namespace collective_ops {
namespace {

constexpr int kBacklog = 4096;              // the kernel lowers it to net.core.somaxconn
constexpr int64_t kSlowNs = 5'000'000'000;  // to say 88 bytes
constexpr size_t kMaxPending = 2048;        // beyond them the one that has waited longest goes
constexpr int kMaxAccepts = 256;            // at once, so that a flood does not keep us from everything else
// A host that has vanished is noticed in half a minute, however idle the connection is.
constexpr int kIdleSeconds = 10;
constexpr int kProbeSeconds = 5;
constexpr int kProbes = 4;
constexpr unsigned kUnansweredMs = 30'000;

void set(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof(value)); }

// A socket that listens; invalid with errno where it cannot.
PrivateDescriptor listen_at(const SocketAddress& address, bool both_families) {
  PrivateDescriptor fd(
      Descriptor(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP)));
  if (!fd.valid()) return fd;
  set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // connections of an earlier job that fade away are no obstacle
  if (address.family() == AF_INET6) set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, both_families ? 0 : 1);
  if (::bind(fd.get(), address.get(), address.length()) == 0 && ::listen(fd.get(), kBacklog) == 0) return fd;
  const int error = errno;
  fd.reset();
  errno = error;
  return fd;
}

// At all addresses of this host; where it knows no IPv6, of IPv4 alone.
PrivateDescriptor listen_at_all(uint16_t port, int family) {
  if (family == AF_UNSPEC) {
    auto both = listen_at(SocketAddress::any(AF_INET6, port), true);
    if (both.valid() || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL)) return both;
    family = AF_INET;
  }
  return listen_at(SocketAddress::any(family, port), false);
}

Status no_port(const Door::Config& config, int rank, int error) {
  std::string ports = config.ports.size() == 1 ? "port " : "ports ";
  for (size_t i = 0; i < config.ports.size() && i < 8; ++i) {
    ports += fmt::format("{}{}", i == 0 ? "" : ", ", config.ports[i]);
  }
  if (config.ports.size() > 8) ports += fmt::format(" ... {}", config.ports.back());
  const std::string where = config.address.empty() ? "" : fmt::format(" at {}", config.address.host());
  const char* next =
      error == EADDRINUSE
          ? "each is in use by another program (`ss -ltnp` names it); choose another MASTER_PORT, or "
            "other ports by HCCL_HOST_SOCKET_PORT_RANGE"
      : error == EADDRNOTAVAIL ? "this host has no such address; `ip address` lists those it has"
      : error == EACCES        ? "this user may not listen there; ports from 1024 on are for everyone"
                               : std::strerror(error);
  return Status(error == EADDRINUSE || error == EADDRNOTAVAIL ? ErrorCode::kRendezvous : ErrorCode::kSystem,
                fmt::format("rank {} cannot listen on {}{}: {}", rank, ports, where, next));
}

}  // namespace

void prepare_connection(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(kUnansweredMs));
}

Door::Door(PrivateDescriptor listener, PrivateDescriptor epoll, int rank, bool any_address)
    : rank_(rank),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      port_(local_address(listener_.get()).port()),
      any_address_(any_address) {}

Result<std::unique_ptr<Door>> Door::open(const Config& config, int rank) {
  int error = EADDRINUSE;
  for (const uint16_t port : config.ports) {
    auto listener = config.address.empty() ? listen_at_all(port, config.family)
                                           : listen_at(config.address.with_port(port), false);
    if (!listener.valid()) {
      error = errno;
      if (error == EADDRINUSE || error == EACCES) continue;
      break;
    }
    PrivateDescriptor epoll(Descriptor(::epoll_create1(EPOLL_CLOEXEC)));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = listener.get();
    if (!epoll.valid() || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listener.get(), &event) != 0) {
      error = errno;
      break;
    }
    return std::unique_ptr<Door>(
        new Door(std::move(listener), std::move(epoll), rank, config.address.empty()));
  }
  return no_port(config, rank, error);
}

void Door::set_key(const Digest& key) {
  const std::lock_guard lock(mutex_);
  key_ = key;
}

void Door::stop_registering() {
  const std::lock_guard lock(mutex_);
  registering_ = false;
  const auto late = [](const Visitor& visitor) {
    return visitor.claim.purpose == static_cast<uint32_t>(Purpose::kRegister);
  };
  std::erase_if(visitors_, late);
}

void Door::serve() {
  const std::lock_guard lock(mutex_);
  if (!key_) return;
  std::array<epoll_event, 64> events{};
  for (;;) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    if (count <= 0) break;
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == listener_.get()) {
        accept_all();
      } else {
        advance(fd);
      }
    }
    if (count < static_cast<int>(events.size())) break;
  }
  show_out_slow();
}

void Door::accept_all() {
  for (int i = 0; i < kMaxAccepts; ++i) {
    PrivateDescriptor fd(
        Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
    if (!fd.valid()) {
      if (errno == EMFILE || errno == ENFILE) {
        starved_ = true;
        if (!pending_.empty()) pending_.pop_front();  // so that the queue goes on
      }
      return;
    }
    prepare_connection(fd.get());
    Pending pending{std::move(fd), handshake::Answering(*key_), monotonic_ns() + kSlowNs, {}};
    pending.from = peer_address(pending.fd.get());
    if (!pending.answering.challenge(pending.fd.get())) continue;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = pending.fd.get();
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pending.fd.get(), &event) != 0) continue;
    if (pending_.size() >= kMaxPending) pending_.pop_front();
    pending_.push_back(std::move(pending));
  }
}

void Door::advance(int fd) {
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [fd](const Pending& pending) { return pending.fd.get() == fd; });
  if (found == pending_.end()) return;
  const auto progress = found->answering.step(fd);
  if (progress == handshake::Progress::kWaiting) return;
  Pending pending = std::move(*found);
  pending_.erase(found);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  if (progress == handshake::Progress::kDone) {
    admit(std::move(pending));
  } else if (progress == handshake::Progress::kRefused) {
    ++refusals_.count;
    refusals_.last = pending.from;
  }
}

void Door::admit(Pending pending) {
  const handshake::Claim& claim = pending.answering.claim();
  auto verdict = handshake::Verdict::kAccepted;
  if (claim.purpose == static_cast<uint32_t>(Purpose::kRegister) && !registering_) {
    verdict = handshake::Verdict::kOver;
  }
  if (claim.peer != rank_) verdict = handshake::Verdict::kWrongRank;
  if (!pending.answering.decide(pending.fd.get(), verdict)) return;
  if (verdict == handshake::Verdict::kAccepted) visitors_.push_back({std::move(pending.fd), claim});
}

void Door::show_out_slow() {
  const int64_t now = monotonic_ns();
  while (!pending_.empty() && pending_.front().until_ns <= now) pending_.pop_front();
}

std::optional<Visitor> Door::take(int rank, uint32_t purpose, uint64_t channel) {
  const std::lock_guard lock(mutex_);
  std::optional<Visitor> taken;
  std::erase_if(visitors_, [&](Visitor& visitor) {
    if (visitor.claim.rank != rank || visitor.claim.purpose != purpose || visitor.claim.channel != channel) {
      return false;
    }
    taken = std::move(visitor);
    return true;
  });
  return taken;
}

std::optional<Visitor> Door::take_any(uint32_t purpose) {
  const std::lock_guard lock(mutex_);
  for (auto visitor = visitors_.begin(); visitor != visitors_.end(); ++visitor) {
    if (visitor->claim.purpose != purpose) continue;
    std::optional<Visitor> taken = std::move(*visitor);
    visitors_.erase(visitor);
    return taken;
  }
  return std::nullopt;
}

Refusals Door::refusals() const {
  const std::lock_guard lock(mutex_);
  return refusals_;
}

bool Door::starved() {
  const std::lock_guard lock(mutex_);
  return std::exchange(starved_, false);
}

}  // namespace collective_ops
