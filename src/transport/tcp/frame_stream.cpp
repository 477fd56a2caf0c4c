#include "transport/tcp/frame_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace collective_ops::tcp {
namespace {

constexpr size_t kBuffer = sizeof(Frame) + kMostFramePayload;

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

FrameStream::FrameStream(PrivateDescriptor socket) : socket_(std::move(socket)) {}

void FrameStream::fail(const char* doing, int error) {
  if (!status_.ok()) return;
  status_ = {ErrorCode::kPeerLost, error == 0 ? std::string("its connection was closed")
                                              : fmt::format("{} failed: {}", doing, std::strerror(error))};
}

void FrameStream::write(const Frame& frame, const std::byte* payload) {
  if (!status_.ok()) return;
  const auto* front = reinterpret_cast<const std::byte*>(&frame);
  size_t gone = 0;
  if (flushed()) {
    iovec pieces[] = {{const_cast<std::byte*>(front), sizeof(frame)},
                      {const_cast<std::byte*>(payload), frame.payload}};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = frame.payload > 0 ? 2 : 1;
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && !would_block(errno)) return fail("sending", errno);
    gone = sent > 0 ? static_cast<size_t>(sent) : 0;
  }
  const size_t of_front = std::min(gone, sizeof(frame));
  out_.insert(out_.end(), front + of_front, front + sizeof(frame));
  if (frame.payload > 0) out_.insert(out_.end(), payload + (gone - of_front), payload + frame.payload);
}

void FrameStream::push() {
  while (!flushed() && status_.ok()) {
    const ssize_t sent = ::send(socket_.get(), out_.data() + sent_, waiting(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (!would_block(errno)) fail("sending", errno);
      return;
    }
    sent_ += static_cast<size_t>(sent);
  }
  out_.clear();
  sent_ = 0;
}

void FrameStream::pull(const std::function<void(const Frame&, const std::byte*)>& take) {
  if (in_.empty()) in_.resize(kBuffer);
  // As much as one buffer at a time: other connections have their turn.
  if (taken_ > 0) {
    std::memmove(in_.data(), in_.data() + taken_, filled_ - taken_);
    filled_ -= taken_;
    taken_ = 0;
  }
  if (status_.ok() && filled_ < in_.size()) {
    const ssize_t got = ::recv(socket_.get(), in_.data() + filled_, in_.size() - filled_, MSG_DONTWAIT);
    if (got > 0) {
      filled_ += static_cast<size_t>(got);
    } else if (got == 0) {
      fail("", 0);
    } else if (!would_block(errno)) {
      fail("receiving", errno);
    }
  }
  while (filled_ - taken_ >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, in_.data() + taken_, sizeof(frame));
    if (frame.payload > kMostFramePayload || frame.kind < FrameKind::kWhole ||
        frame.kind > FrameKind::kClosing)
      return fail("reading a message", EBADMSG);
    if (filled_ - taken_ < sizeof(frame) + frame.payload) return;
    const std::byte* payload = in_.data() + taken_ + sizeof(frame);
    taken_ += sizeof(frame) + frame.payload;
    take(frame, payload);
  }
}

}  // namespace collective_ops::tcp
