#include "bootstrap/frames.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace collective_ops {
namespace {

struct Header {
  uint32_t kind = 0;
  uint32_t bytes = 0;  // of the body
};
// A table of kMaxClusterRanks ranks with eight addresses each has a quarter of it.
constexpr uint32_t kMaxBody = 64u << 20;
constexpr size_t kPiece = 64 * 1024;

}  // namespace

FrameLink::Received FrameLink::receive(NetFrame& frame) {
  for (;;) {
    Header header;
    if (in_.size() >= sizeof(header)) {
      std::memcpy(&header, in_.data(), sizeof(header));
      if (header.bytes > kMaxBody) return Received::kClosed;
      if (in_.size() >= sizeof(header) + header.bytes) {
        frame.kind = static_cast<FrameKind>(header.kind);
        frame.body.assign(in_, sizeof(header), header.bytes);
        in_.erase(0, sizeof(header) + header.bytes);
        return Received::kFrame;
      }
    }
    // Only as much as this frame still needs, so that a buffer never holds more than one.
    const size_t wanted = in_.size() < sizeof(header) ? sizeof(header) - in_.size()
                                                      : sizeof(header) + header.bytes - in_.size();
    const size_t before = in_.size();
    in_.resize(before + std::min(wanted, kPiece));
    const ssize_t count = ::recv(fd_.get(), in_.data() + before, in_.size() - before, MSG_DONTWAIT);
    in_.resize(before + (count > 0 ? static_cast<size_t>(count) : 0));
    if (count > 0) continue;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::kNothing;
    return Received::kClosed;
  }
}

void FrameLink::send(FrameKind kind, std::string_view body) {
  const Header header{static_cast<uint32_t>(kind), static_cast<uint32_t>(body.size())};
  out_.append(reinterpret_cast<const char*>(&header), sizeof(header));
  out_.append(body);
  flush();
}

bool FrameLink::flush() {
  size_t sent = 0;
  bool alive = fd_.valid();
  while (alive && sent < out_.size()) {
    const ssize_t count =
        ::send(fd_.get(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      alive = errno == EAGAIN || errno == EWOULDBLOCK;
      break;
    }
  }
  out_.erase(0, sent);
  if (!alive) out_.clear();
  return alive;
}

Packer& Packer::number(int64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return *this;
}

Packer& Packer::text(std::string_view value) {
  number(static_cast<int64_t>(value.size()));
  bytes_.append(value);
  return *this;
}

int64_t Unpacker::number() {
  int64_t value = 0;
  ok_ = ok_ && bytes_.size() >= sizeof(value);
  if (!ok_) return 0;
  std::memcpy(&value, bytes_.data(), sizeof(value));
  bytes_.remove_prefix(sizeof(value));
  return value;
}

std::string Unpacker::text() {
  const int64_t size = number();
  ok_ = ok_ && size >= 0 && static_cast<uint64_t>(size) <= bytes_.size();
  if (!ok_) return "";
  std::string value(bytes_.substr(0, static_cast<size_t>(size)));
  bytes_.remove_prefix(static_cast<size_t>(size));
  return value;
}

}  // namespace collective_ops
