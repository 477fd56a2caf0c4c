// Messages between two ranks of a group, as Communicator::send, recv, exchange and start move them.
//
// A receive takes the first message, in the order of sending, that comes with its tag from its source; of two
// receives that fit, the one posted first. Messages of one source and tag never overtake each other. Small
// ones are taken off the sender at once; a large one keeps its buffer until the receiver has copied it. A
// rank may send to itself. Messages need nobody's collective, and collectives no message.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <collective_ops/types.h>

namespace collective_ops {

inline constexpr int kAnySource = -1;

struct Transfer {
  enum Kind : uint8_t { kSend, kReceive };

  Kind kind = kSend;
  void* buffer = nullptr;  // only read where it is sent; untouched by others until the transfer is done
  size_t count = 0;        // elements
  DataType type = DataType::kUInt8;
  int peer = kAnySource;  // rank of the group: the receiver, or the source; kAnySource for receives alone
  int tag = 0;            // from 0
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;  // zero: for ever; default exec_timeout
  // Of a receive: a message with fewer elements than the buffer is welcome, and Received tells how many.
  // Otherwise sizes must agree: kMismatch on both sides, as where the message is longer or of another type.
  bool allow_shorter = false;

  static Transfer send(const void* data, size_t count, DataType type, int to, int tag = 0) {
    return {kSend, const_cast<void*>(data), count, type, to, tag};
  }
  static Transfer receive(void* data, size_t count, DataType type, int from = kAnySource, int tag = 0) {
    return {kReceive, data, count, type, from, tag};
  }
};

// What has come.
struct Received {
  int source = kAnySource;
  int tag = 0;
  size_t count = 0;  // elements
};

}  // namespace collective_ops
