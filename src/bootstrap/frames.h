// Framed messages over a connection that has proved itself, and what they hold. Nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "memory/private_descriptor.h"

namespace collective_ops {

enum class FrameKind : uint32_t {
  kRecord = 1,  // to rank 0: who and where I am
  kTable,       // down the tree: who and where all are
  kReady,       // up the tree: all below are connected
  kGo,          // down the tree: all are
  kFailure,     // the status that everyone returns
  kGiveUp,      // to rank 0: my time is over
  kNews,        // along the tree, after the join: what has gone wrong
  kBye,         // I leave as I should
};

struct NetFrame {
  FrameKind kind = FrameKind::kBye;
  std::string body;
};

class FrameLink {
 public:
  FrameLink() = default;
  explicit FrameLink(PrivateDescriptor fd) : fd_(std::move(fd)) {}

  bool valid() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  void close() { fd_.reset(); }

  enum class Received { kFrame, kNothing, kClosed };  // kClosed: gone, or it sends what is no frame
  Received receive(NetFrame& frame);

  // Queued; what the connection does not take at once goes with the next flush().
  void send(FrameKind kind, std::string_view body = {});
  bool flush();  // false: the connection is gone
  bool unsent() const { return !out_.empty(); }

 private:
  PrivateDescriptor fd_;
  std::string in_;
  std::string out_;
};

// Numbers and texts, one behind the other.
class Packer {
 public:
  Packer& number(int64_t value);
  Packer& text(std::string_view value);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// What is missing or malformed reads as 0 and "", and ok() is false from then on.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  int64_t number();
  std::string text();
  bool ok() const { return ok_; }
  bool done() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace collective_ops
