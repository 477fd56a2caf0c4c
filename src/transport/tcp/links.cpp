#include "transport/tcp/links.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include <fmt/format.h>
#include <sched.h>

#include "base/clock.h"
#include "transport/shm/pause.h"

namespace collective_ops::tcp {
namespace {

// A system call that finds nothing takes about 0.3 us: so long a rank with a core of its own tries.
constexpr int kTries = 100;
constexpr int kTriesWhereCrowded = 3;
constexpr int64_t kFirstNapNs = 1'000'000;
constexpr int64_t kLongestNapNs = 10'000'000;
// How long after a connection has ended the reason may still come from elsewhere.
constexpr int64_t kReasonNs = 200'000'000;

}  // namespace

Links::Links(LinkOwner& owner, shm::HostsPace& pace, const LinksSettings& settings)
    : owner_(owner),
      pace_(pace),
      settings_(settings),
      deadline_ns_(kNoDeadline),
      links_(static_cast<size_t>(settings.world_size)),
      left_(static_cast<size_t>(settings.world_size)),
      waited_ns_(static_cast<size_t>(settings.world_size)) {}

Links::~Links() = default;

Status Links::watch(int fd, uint32_t events) {
  if (!epoll_.valid()) {
    epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_.valid())
      return {ErrorCode::kSystem, fmt::format("connecting: epoll_create1: {}", std::strerror(errno))};
    if (const int other = owner_.pollable(); other >= 0) {
      epoll_event event{.events = EPOLLIN};
      (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, other, &event);
    }
  }
  epoll_event event{.events = events};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return {ErrorCode::kSystem, fmt::format("connecting: epoll_ctl: {}", std::strerror(errno))};
  return {};
}

Result<Link*> Links::link(int peer) {
  std::unique_ptr<Link>& place = links_[static_cast<size_t>(peer)];
  if (place != nullptr) return place.get();
  std::vector<PrivateDescriptor> sockets;
  for (int number = 0; number <= settings_.connections; ++number) {
    auto connected = owner_.connect(peer, static_cast<uint32_t>(number), deadline_ns_);
    if (!connected.ok()) return connected.status();
    sockets.push_back(std::move(*connected));
    if (Status status = prepare_socket(sockets.back().get()); !status.ok()) return status;
    const uint32_t events = number == 0 ? EPOLLIN | EPOLLET : EPOLLIN | EPOLLOUT | EPOLLET;
    if (Status status = watch(sockets.back().get(), events); !status.ok()) return status;
  }
  PrivateDescriptor notices = std::move(sockets.front());
  sockets.erase(sockets.begin());
  place = std::make_unique<Link>(std::move(notices), std::move(sockets));
  linked_.push_back(peer);
  return place.get();
}

Status Links::reach(int peer) { return link(peer).status(); }

Status Links::send(int peer, const Header& header, const std::byte* data) {
  auto found = link(peer);
  if (!found.ok()) return found.status();
  (*found)->send(header, data);
  (void)(*found)->push();
  if ((*found)->sending()) pace_.set_sending(true);
  return (*found)->ended() ? ended(peer) : Status();
}

bool Links::push_all() {
  if (!pace_.sending()) return false;
  bool moved = false, more = false;
  for (const int peer : linked_) {
    Link& one = *links_[static_cast<size_t>(peer)];
    if (one.sending()) moved |= one.push();
    more |= one.sending();
  }
  pace_.set_sending(more);
  return moved;
}

Status Links::receive(int peer, const Header& header, std::byte* data) {
  auto found = link(peer);
  if (!found.ok()) return found.status();
  Link& from = **found;
  from.expect(header, data);
  Pace pace;
  int64_t begun = 0;
  for (;;) {
    const Link::Pulled pulled = from.pull();
    if (pulled == Link::Pulled::kDone) break;
    if (pulled == Link::Pulled::kFailed)
      return from.differs() ? owner_.differs(peer, from.received(), from.expected()) : ended(peer);
    const bool pushed = push_all();
    if (pulled == Link::Pulled::kSome && begun > 0) {  // from its first bytes on it travels
      waited_ns_[static_cast<size_t>(peer)] += monotonic_ns() - begun;
      begun = -1;
    }
    if (pushed || pulled == Link::Pulled::kSome) {
      pace = pace.after_progress();
      continue;
    }
    if (begun == 0) begun = monotonic_ns();
    if (Status status = pause(peer, pace); !status.ok()) return status;
  }
  if (begun > 0) waited_ns_[static_cast<size_t>(peer)] += monotonic_ns() - begun;
  return {};
}

Status Links::flush() {
  Pace pace;
  for (;;) {
    if (push_all()) pace = pace.after_progress();
    int waits_for = -1;
    for (const int peer : linked_) {
      Link& one = *links_[static_cast<size_t>(peer)];
      if (!one.sending()) continue;
      if (one.ended()) return ended(peer);
      waits_for = peer;
    }
    if (waits_for < 0) return {};
    if (Status status = pause(waits_for, pace); !status.ok()) return status;
  }
}

void Links::keep(const std::byte* data, size_t bytes) {
  for (const int peer : linked_) {
    Link& one = *links_[static_cast<size_t>(peer)];
    if (one.sending()) one.keep(data, bytes);
  }
}

// Half a message cannot be taken back, so the links end.
void Links::drop() {
  for (const int peer : linked_) links_[static_cast<size_t>(peer)].reset();
  linked_.clear();
  pace_.set_sending(false);
}

void Links::tell(const Notice& notice) {
  for (const int peer : linked_) links_[static_cast<size_t>(peer)]->write_notice(notice);
}

Status Links::pause(int peer, Pace& pace) {
  const int64_t now = monotonic_ns();
  const bool crowded = settings_.oversubscribed || pace.is_slow || pace_.crowded(now);
  if (pace.turns++ < (crowded ? kTriesWhereCrowded : kTries)) {
    shm::cpu_relax();
    return {};
  }
  if (pace.yields_until_ns == 0) pace.yields_until_ns = now + shm::kYieldNs;
  if (now >= pace.yields_until_ns || pace.is_slow || pace_.crowded(now)) return sleep(peer, pace);
  sched_yield();
  (void)pace_.note_yield(now, monotonic_ns());
  return {};
}

Status Links::sleep(int peer, Pace& pace) {
  // Its first nap ends by itself, or with what has come.
  if (pace.nap_ns != 0) {
    if (Status status = look(peer); !status.ok()) return status;
  }
  pace.nap_ns = pace.nap_ns == 0 ? kFirstNapNs : std::min(2 * pace.nap_ns, kLongestNapNs);
  const int64_t left = deadline_ns_ == kNoDeadline ? kLongestNapNs : deadline_ns_ - monotonic_ns();
  const int64_t nap = std::clamp<int64_t>(left, 1'000'000, pace.nap_ns);
  epoll_event events[16];
  // Sockets tell of changes alone, and all that is open was tried before: so none is missed.
  (void)::epoll_wait(epoll_.get(), events, 16, static_cast<int>(nap / 1'000'000));
  return {};
}

Status Links::read_notices(int peer) {
  for (const Notice& notice : links_[static_cast<size_t>(peer)]->read_notices()) {
    if (notice.kind == NoticeKind::kLeft) {
      left_[static_cast<size_t>(peer)] = 1;
    } else if (Status status = owner_.noticed(peer, notice); !status.ok()) {
      return status;
    }
  }
  return {};
}

// What may have happened while this rank waits for `peer`.
Status Links::look(int peer) {
  for (const int other : linked_) {
    if (Status status = read_notices(other); !status.ok()) return status;
    // What one that has left sent before still counts.
    if (links_[static_cast<size_t>(other)]->ended() && left_[static_cast<size_t>(other)] == 0)
      return ended(other);
  }
  return owner_.check(peer, monotonic_ns() >= deadline_ns_);
}

// Mostly somebody knows more than that a connection has ended, a moment later.
Status Links::ended(int peer) {
  const std::string how = links_[static_cast<size_t>(peer)]->status().message();
  const int64_t stop = monotonic_ns() + kReasonNs;
  do {
    if (Status status = read_notices(peer); !status.ok()) return status;
    if (left_[static_cast<size_t>(peer)] != 0) return owner_.lost(peer, "it has left the group");
    if (Status status = owner_.check(peer, false); !status.ok()) return status;
    const timespec nap{0, 1'000'000};
    nanosleep(&nap, nullptr);
  } while (monotonic_ns() < stop);
  return owner_.lost(peer, how);
}

}  // namespace collective_ops::tcp
