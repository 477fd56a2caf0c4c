#include "bootstrap/wire.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"

namespace collective_ops::wire {
namespace {

constexpr size_t kMaxPassed = 8;  // descriptors in one message; more than one is a stranger's

// Takes every descriptor that came, so that none stays open unseen.
std::vector<Descriptor> take_descriptors(msghdr& message) {
  std::vector<Descriptor> taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      taken.emplace_back(fd);
    }
  }
  return taken;
}

// The length of the next message; nothing where there is none or the other side has closed (errno 0).
std::optional<size_t> next_length(int fd) {
  // A sender that closed with our own messages unread leaves ECONNRESET before its last words.
  for (int attempt = 0; attempt < 3; ++attempt) {
    const ssize_t length = ::recv(fd, nullptr, 0, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
    if (length > 0) return static_cast<size_t>(length);
    if (length == 0) errno = 0;
    if (errno != EINTR && errno != ECONNRESET) break;
  }
  return std::nullopt;
}

}  // namespace

Address abstract_address(const std::string& name) {
  Address address;
  address.socket.sun_family = AF_UNIX;  // sun_path[0] stays zero: no file
  const size_t length = std::min(name.size(), sizeof(address.socket.sun_path) - 1);
  std::memcpy(address.socket.sun_path + 1, name.data(), length);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

Descriptor new_socket() {
  return Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::optional<ucred> credentials(int fd) {
  ucred value{};
  socklen_t length = sizeof(value);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &value, &length) != 0) return std::nullopt;
  return value;
}

bool send(int fd, Kind kind, std::span<const std::byte> body, int passed_fd) {
  FrameHeader header{kMagic, kind, 0};
  iovec parts[2] = {{&header, sizeof(header)}, {const_cast<std::byte*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (passed_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &passed_fd, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof(header) + body.size());
}

Received receive(int fd, Frame& frame) {
  const auto length = next_length(fd);
  if (!length) return errno == EAGAIN || errno == EWOULDBLOCK ? Received::kNothing : Received::kClosed;
  FrameHeader header;
  std::vector<std::byte> body(std::min(*length, kMaxFrame) - std::min(*length, sizeof(header)));
  iovec parts[2] = {{&header, sizeof(header)}, {body.data(), body.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPassed * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (count <= 0) return Received::kClosed;
  auto descriptors = take_descriptors(message);
  if ((message.msg_flags & MSG_CTRUNC) != 0 && descriptors.empty()) return Received::kNoDescriptors;
  const bool cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  if (cut || static_cast<size_t>(count) < sizeof(header) || header.magic != kMagic ||
      descriptors.size() > 1) {
    return Received::kGarbage;
  }
  body.resize(static_cast<size_t>(count) - sizeof(header));
  frame.kind = header.kind;
  frame.body = std::move(body);
  frame.fd = descriptors.empty() ? Descriptor() : std::move(descriptors.front());
  return Received::kFrame;
}

std::vector<std::byte> failure_body(const Status& status) {
  const FailureHeader header{static_cast<uint32_t>(status.code())};
  const size_t room = kMaxFrame - sizeof(FrameHeader) - sizeof(header);
  const std::string text = status.message().substr(0, room);
  std::vector<std::byte> body(sizeof(header) + text.size());
  std::memcpy(body.data(), &header, sizeof(header));
  std::memcpy(body.data() + sizeof(header), text.data(), text.size());
  return body;
}

Status failure_of(std::span<const std::byte> body) {
  const auto header = front<FailureHeader>(body);
  if (!header || header->code == 0 || header->code >= kErrorCodeCount) {
    return Status(ErrorCode::kRendezvous, "rank 0 reported a failure that this build does not know");
  }
  const auto text = body.subspan(sizeof(FailureHeader));
  return Status(static_cast<ErrorCode>(header->code),
                std::string(reinterpret_cast<const char*>(text.data()), text.size()));
}

int poll_timeout(int64_t deadline_ns) {
  if (deadline_ns == kNoDeadline) return -1;
  const int64_t left = deadline_ns - monotonic_ns();
  if (left <= 0) return 0;
  return static_cast<int>(std::min<int64_t>((left + 999'999) / 1'000'000, 3'600'000));
}

bool wait_readable(int fd, int64_t deadline_ns) {
  pollfd entry{fd, POLLIN, 0};
  for (;;) {
    const int timeout = poll_timeout(deadline_ns);
    const int ready = ::poll(&entry, 1, timeout);
    if (ready > 0) return true;
    if (timeout == 0 || (ready < 0 && errno != EINTR)) return false;
  }
}

}  // namespace collective_ops::wire
