#include "transport/tcp/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

namespace collective_ops::tcp {
namespace {

// A host that is gone without a word: noticed after about this long, whether this side sends or only listens.
constexpr int kSilenceMs = 30'000;
constexpr int kProbeAfterS = 10;
constexpr int kProbeEveryS = 5;
constexpr int kProbes = 4;

// Where an answer takes no longer than this, so much on its way fills the connection (the system takes it
// twice, for its own needs), and stays in the cache until it is read. Elsewhere the system finds the length.
constexpr uint32_t kNearUs = 100;
constexpr int kNearBuffer = 128 << 10;

// What one system call moves at most, so that a rank looks at its other connections in between.
constexpr size_t kMostAtOnce = 1 << 20;

struct NoticeFront {
  uint32_t kind = 0;
  uint32_t code = 0;
  uint32_t call = 0;
  uint32_t text_bytes = 0;
};

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

bool overlap(const std::byte* a, size_t a_bytes, const std::byte* b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

Part part_of(size_t bytes, size_t connections, size_t connection) {
  const size_t parts = std::clamp<size_t>(bytes / kSmallestPart, 1, connections);
  const size_t length = ((bytes + parts - 1) / parts + 63) / 64 * 64;
  const size_t begin = connection < parts ? std::min(bytes, connection * length) : bytes;
  return {begin, connection + 1 < parts ? std::min(bytes, begin + length) : bytes};
}

Status prepare_socket(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return {ErrorCode::kSystem, fmt::format("preparing a connection: fcntl: {}", std::strerror(errno))};
  }
  const auto set = [fd](int level, int name, int value) {
    (void)::setsockopt(fd, level, name, &value,
                       sizeof(value));  // a socket of another kind has no such option
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kProbeAfterS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeEveryS);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kSilenceMs);
  tcp_info info{};
  socklen_t length = sizeof(info);
  const bool known = ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
  if (known && info.tcpi_rtt > 0 && info.tcpi_rtt <= kNearUs) set(SOL_SOCKET, SO_SNDBUF, kNearBuffer);
  return {};
}

Link::Link(PrivateDescriptor notices, std::vector<PrivateDescriptor> data)
    : notices_(std::move(notices)), data_(std::move(data)) {
  incoming_.received.resize(data_.size());
}

void Link::send(Header header, const std::byte* data) {
  header.message = ++messages_sent_;
  Outgoing out{.header = header, .data = data};
  out.sent.resize(data_.size());
  out.left = sizeof(Header) + header.bytes;
  outgoing_.push_back(std::move(out));
}

void Link::keep(const std::byte* data, size_t bytes) {
  for (Outgoing& out : outgoing_) {
    if (!out.kept.empty() || !overlap(out.data, out.header.bytes, data, bytes)) continue;
    out.kept.assign(out.data, out.data + out.header.bytes);
    out.data = out.kept.data();
  }
}

bool Link::fail(const char* doing, int error) {
  if (status_.ok()) {
    status_ = {ErrorCode::kPeerLost, error == 0 ? std::string("its connection was closed")
                                                : fmt::format("{} failed: {}", doing, std::strerror(error))};
  }
  return false;
}

// The header, and behind it the first connection's part.
bool Link::push_front(Outgoing& out) {
  const Part part = part_of(out.header.bytes, data_.size(), 0);
  iovec pieces[2];
  int count = 0;
  if (out.header_sent < sizeof(Header)) {
    pieces[count++] = {reinterpret_cast<std::byte*>(&out.header) + out.header_sent,
                       sizeof(Header) - out.header_sent};
  }
  const size_t from = part.begin + out.sent[0];
  if (from < part.end) {
    pieces[count++] = {const_cast<std::byte*>(out.data) + from, std::min(part.end - from, kMostAtOnce)};
  }
  if (count == 0) return false;
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = static_cast<size_t>(count);
  const ssize_t sent = ::sendmsg(data_[0].get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return would_block(errno) ? false : fail("sending", errno);
  size_t bytes = static_cast<size_t>(sent);
  out.left -= bytes;
  const size_t of_header = std::min(bytes, sizeof(Header) - out.header_sent);
  out.header_sent += of_header;
  out.sent[0] += bytes - of_header;
  return bytes > 0;
}

bool Link::push_part(Outgoing& out, size_t connection) {
  const Part part = part_of(out.header.bytes, data_.size(), connection);
  const size_t from = part.begin + out.sent[connection];
  if (from >= part.end) return false;
  const ssize_t sent = ::send(data_[connection].get(), out.data + from,
                              std::min(part.end - from, kMostAtOnce), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return would_block(errno) ? false : fail("sending", errno);
  out.sent[connection] += static_cast<size_t>(sent);
  out.left -= static_cast<size_t>(sent);
  return sent > 0;
}

bool Link::push() {
  bool moved = false;
  while (!outgoing_.empty() && status_.ok()) {
    Outgoing& out = outgoing_.front();
    bool some = push_front(out);
    for (size_t i = 1; i < data_.size() && out.header.bytes >= 2 * kSmallestPart; ++i)
      some |= push_part(out, i);
    if (!status_.ok()) return false;
    moved |= some;
    if (out.left == 0) {
      outgoing_.pop_front();
    } else if (!some) {
      break;
    }
  }
  return moved;
}

void Link::expect(Header header, std::byte* data) {
  header.message = ++messages_received_;
  expected_ = header;
  differs_ = false;
  incoming_.header_received = 0;
  incoming_.data = data;
  std::fill(incoming_.received.begin(), incoming_.received.end(), 0);
  incoming_.left = sizeof(Header) + header.bytes;
  incoming_.active = true;
}

// The header with what stands behind it: that goes straight to its place, where it is wrong in a call that
// fails anyway.
bool Link::pull_front(bool& failed) {
  const Part part = part_of(expected_.bytes, data_.size(), 0);
  iovec pieces[2];
  int count = 0;
  if (incoming_.header_received < sizeof(Header)) {
    pieces[count++] = {reinterpret_cast<std::byte*>(&incoming_.header) + incoming_.header_received,
                       sizeof(Header) - incoming_.header_received};
  }
  const size_t from = part.begin + incoming_.received[0];
  if (from < part.end) {
    pieces[count++] = {incoming_.data + from, std::min(part.end - from, kMostAtOnce)};
  }
  if (count == 0) return false;
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = static_cast<size_t>(count);
  const ssize_t got = ::recvmsg(data_[0].get(), &message, MSG_DONTWAIT);
  if (got <= 0) {
    if (got < 0 && would_block(errno)) return false;
    failed = true;
    return fail("receiving", got == 0 ? 0 : errno);
  }
  const size_t bytes = static_cast<size_t>(got);
  const size_t of_header = std::min(bytes, sizeof(Header) - incoming_.header_received);
  incoming_.header_received += of_header;
  incoming_.received[0] += bytes - of_header;
  incoming_.left -= bytes;
  if (of_header > 0 && incoming_.header_received == sizeof(Header) && incoming_.header != expected_) {
    differs_ = failed = true;
  }
  return true;
}

bool Link::pull_part(size_t connection, bool& failed) {
  const Part part = part_of(expected_.bytes, data_.size(), connection);
  const size_t from = part.begin + incoming_.received[connection];
  if (from >= part.end) return false;
  const ssize_t got = ::recv(data_[connection].get(), incoming_.data + from,
                             std::min(part.end - from, kMostAtOnce), MSG_DONTWAIT);
  if (got <= 0) {
    if (got < 0 && would_block(errno)) return false;
    failed = true;
    return fail("receiving", got == 0 ? 0 : errno);
  }
  incoming_.received[connection] += static_cast<size_t>(got);
  incoming_.left -= static_cast<size_t>(got);
  return true;
}

Link::Pulled Link::pull() {
  if (!incoming_.active) return Pulled::kNothing;
  bool failed = false;
  bool some = pull_front(failed);
  // Nothing of the other parts is taken before the header is known to be right.
  if (incoming_.header_received == sizeof(Header) && expected_.bytes >= 2 * kSmallestPart) {
    for (size_t i = 1; i < data_.size() && !failed; ++i) some |= pull_part(i, failed);
  }
  if (failed) {
    incoming_.active = false;
    return Pulled::kFailed;
  }
  if (incoming_.left == 0) {
    incoming_.active = false;
    return Pulled::kDone;
  }
  return some ? Pulled::kSome : Pulled::kNothing;
}

void Link::write_notice(const Notice& notice) {
  const std::string text = notice.text.substr(0, kMostNoticeBytes);
  const NoticeFront front{static_cast<uint32_t>(notice.kind), static_cast<uint32_t>(notice.code), notice.call,
                          static_cast<uint32_t>(text.size())};
  std::string bytes(reinterpret_cast<const char*>(&front), sizeof(front));
  bytes += text;
  (void)::send(notices_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::vector<Notice> Link::read_notices() {
  char buffer[sizeof(NoticeFront) + kMostNoticeBytes];
  for (;;) {
    const ssize_t got = ::recv(notices_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got > 0) {
      notice_bytes_.append(buffer, static_cast<size_t>(got));
      continue;
    }
    if (got == 0) {
      fail("", 0);
    } else if (!would_block(errno)) {
      fail("receiving", errno);
    }
    break;
  }
  std::vector<Notice> notices;
  NoticeFront front;
  while (notice_bytes_.size() >= sizeof(front)) {
    std::memcpy(&front, notice_bytes_.data(), sizeof(front));
    if (front.text_bytes > kMostNoticeBytes || front.code >= static_cast<uint32_t>(kErrorCodeCount) ||
        front.kind < 1 || front.kind > static_cast<uint32_t>(NoticeKind::kLeft)) {
      fail("reading a notice", EBADMSG);
      notice_bytes_.clear();
      break;
    }
    if (notice_bytes_.size() < sizeof(front) + front.text_bytes) break;
    notices.push_back({static_cast<NoticeKind>(front.kind), static_cast<ErrorCode>(front.code), front.call,
                       notice_bytes_.substr(sizeof(front), front.text_bytes)});
    notice_bytes_.erase(0, sizeof(front) + front.text_bytes);
  }
  return notices;
}

}  // namespace collective_ops::tcp
