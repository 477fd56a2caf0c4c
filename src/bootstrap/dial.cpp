#include "bootstrap/dial.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/door.h"
#include "bootstrap/wire.h"

namespace collective_ops {
namespace {

constexpr int64_t kSliceNs = 50'000'000;           // between two looks at `interrupted`
constexpr int64_t kStaggerNs = 250'000'000;        // before the next address is tried, too
constexpr int64_t kUnansweredNs = 30'000'000'000;  // a kernel answers even for a process that is stopped
constexpr int64_t kSearchNs = 3'000'000'000;  // for a handshake where another process may be the right one

using Outcome = Dialled::Outcome;

class Dialler {
 public:
  Dialler(const DialTarget& target, const Digest& key, const handshake::Claim& claim, const Waiting& waiting)
      : target_(target), key_(key), claim_(claim), waiting_(waiting) {}

  Dialled run() {
    int64_t next_ns = monotonic_ns();
    for (;;) {
      const int64_t now = monotonic_ns();
      if (begun_ < target_.addresses.size() && (now >= next_ns || attempts_.empty())) {
        begin(target_.addresses[begun_++]);
        next_ns = now + kStaggerNs;
        continue;
      }
      if (attempts_.empty()) return finish();
      if (step(now)) return finish();
      if (attempts_.empty()) continue;
      if (Status status = wait(now + kSliceNs); !status.ok()) {
        result_.outcome = Outcome::kEnded;
        result_.status = std::move(status);
        note_open_attempts();
        return finish();
      }
    }
  }

 private:
  struct Attempt {
    PrivateDescriptor fd;
    SocketAddress to;
    int64_t begin_ns = 0;
    handshake::Asking asking;
    int64_t connected_ns = 0;  // 0: not yet
    bool heard = false;        // the other side's challenge
    bool answered = false;
  };

  // What became of the addresses of one host that ended alike.
  struct Note {
    SocketAddress first;
    uint16_t last_port = 0;
    int count = 0;
    std::string what;
  };

  void begin(const SocketAddress& to) {
    Attempt attempt{{}, to, monotonic_ns(), handshake::Asking(key_, claim_)};
    attempt.fd = PrivateDescriptor(
        Descriptor(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP)));
    if (!attempt.fd.valid()) return note(to, std::strerror(errno), Outcome::kUnreachable);
    prepare_connection(attempt.fd.get());
    if (target_.source.family() == to.family() && !target_.source.empty() && !to.is_loopback() &&
        ::bind(attempt.fd.get(), target_.source.get(), target_.source.length()) != 0) {
      return note(to, std::strerror(errno), Outcome::kUnreachable);
    }
    if (::connect(attempt.fd.get(), to.get(), to.length()) != 0 && errno != EINPROGRESS) {
      return note_error(to, errno);
    }
    attempts_.push_back(std::move(attempt));
  }

  // True when the result stands. Who has sent its challenge is answered one at a time, so that no peer takes
  // two for connected; who is silent keeps nobody from that.
  bool step(int64_t now) {
    std::erase_if(attempts_, [&](Attempt& attempt) { return !connect(attempt, now) || !hear(attempt, now); });
    auto next = std::find_if(attempts_.begin(), attempts_.end(),
                             [](const Attempt& attempt) { return attempt.answered; });
    if (next == attempts_.end()) {
      next = std::find_if(attempts_.begin(), attempts_.end(),
                          [](const Attempt& attempt) { return attempt.heard; });
    }
    if (next == attempts_.end()) return false;
    next->answered = true;
    if (shake(*next, next->asking.step(next->fd.get()), now)) return result_.fd.valid();
    attempts_.erase(next);
    return false;
  }

  // False where this attempt is over.
  bool connect(Attempt& attempt, int64_t now) {
    if (attempt.connected_ns != 0) return true;
    pollfd ready{attempt.fd.get(), POLLOUT, 0};
    if (::poll(&ready, 1, 0) == 0) {
      if (now - attempt.begin_ns < kUnansweredNs) return true;
      note(attempt.to, "no answer", Outcome::kUnreachable);
      return false;
    }
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(attempt.fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    // A socket that calls a free port of its own host from that very port is connected to itself.
    const SocketAddress mine = local_address(attempt.fd.get());
    if (error == 0 && mine.same_host(attempt.to) && mine.port() == attempt.to.port()) error = ECONNREFUSED;
    if (error != 0) {
      note_error(attempt.to, error);
      return false;
    }
    attempt.connected_ns = now;
    return true;
  }

  bool hear(Attempt& attempt, int64_t now) {
    if (attempt.connected_ns == 0 || attempt.heard) return true;
    const auto progress = attempt.asking.listen(attempt.fd.get());
    attempt.heard = progress == handshake::Progress::kDone;
    return attempt.heard || shake(attempt, progress, now);
  }

  // False where this attempt is over.
  bool shake(Attempt& attempt, handshake::Progress progress, int64_t now) {
    using handshake::Progress;
    switch (progress) {
      case Progress::kWaiting:
        if (!target_.search || now - attempt.connected_ns < kSearchNs) return true;
        note(attempt.to, "connected, and then nothing came", Outcome::kStranger);
        break;
      case Progress::kDone:
        result_.outcome = Outcome::kConnected;
        result_.address = attempt.to;
        result_.fd = std::move(attempt.fd);
        return true;
      case Progress::kRefused:
        note(attempt.to, "refused this process's secret", Outcome::kRefused);
        break;
      case Progress::kWrongRank:
        note(attempt.to, "is another rank", Outcome::kWrongRank);
        break;
      case Progress::kOver:
        note(attempt.to, "its group is complete already", Outcome::kOver);
        break;
      case Progress::kStranger:
        note(attempt.to, "another program listens there", Outcome::kStranger);
        break;
      case Progress::kClosed:
        note(attempt.to, "closed the connection", Outcome::kStranger);
        break;
    }
    return false;
  }

  Status wait(int64_t until_ns) const {
    std::vector<pollfd> polled;
    for (const Attempt& attempt : attempts_) {
      if (attempt.heard && !attempt.answered) continue;  // waits for its turn
      const auto events = static_cast<short>(attempt.connected_ns != 0 ? POLLIN : POLLOUT);
      polled.push_back({attempt.fd.get(), events, 0});
    }
    return waiting_.poll(polled, until_ns);
  }

  void note_error(const SocketAddress& to, int error) {
    note(to, error == ECONNREFUSED ? "connection refused" : std::strerror(error),
         error == ECONNREFUSED ? Outcome::kNobody : Outcome::kUnreachable);
  }

  // The outcome that says most stays: outcomes are in that order.
  void note(const SocketAddress& to, const std::string& what, Outcome outcome) {
    auto known = std::find_if(notes_.begin(), notes_.end(), [&](const Note& note) {
      return note.what == what && note.first.same_host(to);
    });
    if (known == notes_.end()) known = notes_.insert(known, {to, 0, 0, what});
    known->last_port = to.port();
    ++known->count;
    result_.outcome = std::max(result_.outcome, outcome);
  }

  Dialled finish() {
    for (const Note& note : notes_) {
      std::string where = note.first.with_port();
      if (note.count > 1) {
        where = fmt::format("{} at {} ports from {} to {}", note.first.host(), note.count, note.first.port(),
                            note.last_port);
      }
      result_.text += fmt::format("{}{}: {}", result_.text.empty() ? "" : "; ", where, note.what);
    }
    return std::move(result_);
  }

  void note_open_attempts() {
    for (const Attempt& attempt : attempts_) {
      note(attempt.to,
           attempt.connected_ns != 0 ? "connected, but the process does not answer" : "no answer yet",
           Outcome::kEnded);
    }
    result_.outcome = Outcome::kEnded;
  }

  const DialTarget& target_;
  const Digest& key_;
  const handshake::Claim& claim_;
  const Waiting& waiting_;
  size_t begun_ = 0;
  std::vector<Attempt> attempts_;
  std::vector<Note> notes_;
  Dialled result_;
};

}  // namespace

Status Waiting::check() const {
  if (serve) {
    if (Status status = serve(); !status.ok()) return status;
  }
  if (interrupted) {
    if (Status status = interrupted(); !status.ok()) return status;
  }
  return monotonic_ns() >= deadline_ns ? Status(ErrorCode::kTimeout, "") : Status();
}

Status Waiting::poll(std::vector<pollfd>& polled, int64_t until_ns) const {
  if (pollable >= 0) polled.push_back({pollable, POLLIN, 0});
  ::poll(polled.data(), polled.size(), wire::poll_timeout(std::min(until_ns, deadline_ns)));
  if (pollable >= 0) polled.pop_back();
  return check();
}

Dialled dial(const DialTarget& target, const Digest& key, const handshake::Claim& claim,
             const Waiting& waiting) {
  return Dialler(target, key, claim, waiting).run();
}

}  // namespace collective_ops
