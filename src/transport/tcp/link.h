// What goes between this rank and one other over TCP: messages, each behind a header that says whose call it
// belongs to, straight from and into the callers' memory. A long message is divided over all connections of
// the link; a short one goes behind its header in one system call. Beside them one connection carries notices
// (notice.h), which so never stand behind half a message.
//
// Nothing here waits: push(), pull() and read_notices() move what the sockets take or give. One thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "memory/private_descriptor.h"

namespace collective_ops::tcp {

// Equal on both sides, or they make different calls.
struct Header {
  uint32_t call = 0;     // number of the call
  uint32_t history = 0;  // of the calls before it
  uint64_t head = 0;     // what is called: as in shm::Signature
  uint64_t shape = 0;
  uint64_t bytes = 0;    // of the message
  uint64_t message = 0;  // number of the message on this way of the link
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 40);

enum class NoticeKind : uint32_t {
  kFailed = 1,  // the group is broken; why
  kRefused,     // this rank has refused the call of that number before it began
  kLeft,        // this rank makes no further call
};

struct Notice {
  NoticeKind kind = NoticeKind::kFailed;
  ErrorCode code = ErrorCode::kOk;
  uint32_t call = 0;
  std::string text;
};

inline constexpr size_t kMostNoticeBytes = 4000;
// Parts of a message are at least this long: below, another connection costs more than it brings.
inline constexpr size_t kSmallestPart = 256 << 10;

// Of a message, the part that goes over one connection.
struct Part {
  size_t begin = 0;
  size_t end = 0;
};
Part part_of(size_t bytes, size_t connections, size_t connection);

// Non-blocking, without delay, with limits for peers that have vanished. kSystem.
Status prepare_socket(int fd);

class Link {
 public:
  // `data`: at least one. Descriptors of connected TCP or Unix stream sockets.
  Link(PrivateDescriptor notices, std::vector<PrivateDescriptor> data);

  // Begins a message; `data` must stay as it is until it has gone (sending()), or keep() has been asked. The
  // header's number of the message is filled in.
  void send(Header header, const std::byte* data);
  bool sending() const { return !outgoing_.empty(); }
  // This memory is about to change: what messages still need of it is copied.
  void keep(const std::byte* data, size_t bytes);
  // True where bytes went. A failure ends the link: see status().
  bool push();

  // The next message shall be this one. Before pull(), once per message.
  void expect(Header header, std::byte* data);
  enum class Pulled : uint8_t { kNothing, kSome, kDone, kFailed };
  // kFailed: see differs(), else status().
  Pulled pull();
  // The peer's message is another one than was expected: its header.
  bool differs() const { return differs_; }
  const Header& received() const { return incoming_.header; }
  const Header& expected() const { return expected_; }

  // Writes as much of it as the socket takes at once: it is small, and the connection otherwise idle.
  void write_notice(const Notice& notice);
  // Those that have come. An end of the connection makes status() not ok.
  std::vector<Notice> read_notices();

  const Status& status() const { return status_; }  // kPeerLost: "its connection was reset" and so on
  bool ended() const { return !status_.ok(); }

  int notice_fd() const { return notices_.get(); }
  const std::vector<PrivateDescriptor>& data() const { return data_; }

 private:
  struct Outgoing {
    Header header;
    size_t header_sent = 0;
    const std::byte* data = nullptr;
    std::vector<size_t> sent;     // of each connection's part
    std::vector<std::byte> kept;  // a copy, where the memory had to be given back
    size_t left = 0;              // bytes, with the header
  };
  struct Incoming {
    Header header;
    size_t header_received = 0;
    std::byte* data = nullptr;
    std::vector<size_t> received;
    size_t left = 0;
    bool active = false;
  };

  bool push_part(Outgoing& out, size_t connection);
  bool push_front(Outgoing& out);
  bool pull_front(bool& failed);
  bool pull_part(size_t connection, bool& failed);
  bool fail(const char* doing, int error);

  PrivateDescriptor notices_;
  std::vector<PrivateDescriptor> data_;
  std::deque<Outgoing> outgoing_;
  Incoming incoming_;
  Header expected_;
  bool differs_ = false;
  uint64_t messages_sent_ = 0;
  uint64_t messages_received_ = 0;
  std::string notice_bytes_;  // read, not yet whole
  Status status_;
};

}  // namespace collective_ops::tcp
