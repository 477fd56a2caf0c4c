// What ranks say to each other over abstract unix sockets: one frame is one SOCK_SEQPACKET message,
// {FrameHeader, body}, with at most one descriptor. Everything that arrives is checked before it is
// used: whoever knows the socket's name can write to it.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "memory/descriptor.h"

namespace collective_ops::wire {

enum class Kind : uint32_t {
  kHello = 1,  // to rank 0: who I am
  kWelcome,    // from rank 0: noted; from now on its end is an error
  kRoster,     // from rank 0: who all are, with the control segment
  kConfirm,    // to rank 0: mapped and watching
  kGo,         // from rank 0: all have confirmed
  kFailure,    // both ways: the status everyone returns
  kGiveUp,     // to rank 0: my timeout has passed
  kDuplicate,  // to rank 0: a second process claimed a rank, and went
  kMail,       // between members, after the join
};

struct FrameHeader {
  uint64_t magic = 0;
  Kind kind = Kind::kHello;
  uint32_t reserved = 0;
};
inline constexpr uint64_t kMagic = 0x31'53'50'4f'4c'4c'4f'43;  // "COLLOPS1"
inline constexpr size_t kMaxFrame = 128 * 1024;                // bytes, header included

// Its layout is the same in every version, so that versions can be compared.
struct Hello {
  int32_t rank = 0;
  int32_t world_size = 0;
  int32_t pid = 0;
  int32_t reserved = 0;
  int64_t start_time = 0;
  uint64_t control_bytes = 0;
  char version[64] = {};
};

struct RosterEntry {
  int64_t start_time = 0;
  int32_t pid = 0;
  int32_t reserved = 0;
};

struct RosterHeader {
  uint64_t secret[2] = {0, 0};
  int32_t world_size = 0;
  int32_t reserved = 0;  // `world_size` entries follow
};

struct FailureHeader {
  uint32_t code = 0;  // ErrorCode; the text follows
};

struct Frame {
  Kind kind = Kind::kHello;
  std::vector<std::byte> body;
  Descriptor fd;
};

struct Address {
  sockaddr_un socket{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&socket); }
};
Address abstract_address(const std::string& name);

// A socket of ours: SOCK_SEQPACKET, non-blocking, close-on-exec.
Descriptor new_socket();

// The process at the other end as the kernel knows it. Of a connection to a listening socket: who listens.
std::optional<ucred> credentials(int fd);

// False where the other side has gone or does not read. Never blocks, never raises SIGPIPE.
bool send(int fd, Kind kind, std::span<const std::byte> body = {}, int passed_fd = -1);

enum class Received {
  kFrame,
  kNothing,  // yet
  kClosed,
  kGarbage,  // not one of our frames
  kNoDescriptors,  // the frame's descriptor is lost: this process may open no more
};
Received receive(int fd, Frame& frame);  // never blocks

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// The value at the front of a body; nothing where that is too short.
template <typename T>
std::optional<T> front(std::span<const std::byte> body) {
  if (body.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, body.data(), sizeof(T));
  return value;
}

std::vector<std::byte> failure_body(const Status& status);
Status failure_of(std::span<const std::byte> body);

// poll() on one descriptor until `deadline_ns` (monotonic). True when it is readable or closed.
bool wait_readable(int fd, int64_t deadline_ns);

// Milliseconds for poll() until a deadline, rounded up.
int poll_timeout(int64_t deadline_ns);

}  // namespace collective_ops::wire
