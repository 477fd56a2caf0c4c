// Frames over one connection, both ways: a fixed front, and the bytes that belong to it. What the socket does
// not take at once is kept here, so who writes may go on; has_room() says when it had better wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "memory/private_descriptor.h"

namespace collective_ops::tcp {

enum class FrameKind : uint8_t {
  kWhole = 1,  // a message with its bytes
  kLarge,      // announces one whose bytes come once they are asked for
  kWanted,     // asks for them
  kPart,       // a part of them
  kClosing,    // the writer takes no more messages
};

struct Frame {
  FrameKind kind = FrameKind::kWhole;
  uint8_t type = 0;  // DataType
  uint16_t unused = 0;
  int32_t tag = 0;
  uint32_t slot = 0;     // of kLarge, kWanted and kPart: the sender's name for the message
  uint32_t payload = 0;  // bytes behind this front
  uint64_t bytes = 0;    // of the message
  uint64_t at = 0;       // of kPart: where in the message it begins
};
static_assert(sizeof(Frame) == 32);

inline constexpr size_t kMostFramePayload = 256 << 10;

// One thread at a time.
class FrameStream {
 public:
  explicit FrameStream(PrivateDescriptor socket);

  bool has_room() const { return waiting() < kMostFramePayload; }
  bool flushed() const { return waiting() == 0; }
  // `payload`: frame.payload bytes, at most kMostFramePayload.
  void write(const Frame& frame, const std::byte* payload);
  void push();
  // Hands over each frame that is there, with its bytes.
  void pull(const std::function<void(const Frame&, const std::byte*)>& take);

  const Status& status() const { return status_; }
  int fd() const { return socket_.get(); }

 private:
  size_t waiting() const { return out_.size() - sent_; }
  void fail(const char* doing, int error);

  PrivateDescriptor socket_;
  std::vector<std::byte> out_;
  size_t sent_ = 0;  // of out_
  std::vector<std::byte> in_;
  size_t taken_ = 0, filled_ = 0;  // of in_
  Status status_;
};

}  // namespace collective_ops::tcp
