// Where the messages of a program go: through shared memory (channel_port.h), or over TCP between hosts.
// Sends never wait for the receiver's statement, so programs may send round a ring. One thread at a time.
#pragma once

#include <cstddef>

namespace collective_ops {

class MessagePort {
 public:
  virtual ~MessagePort() = default;

  // Begins a message; the memory stays as it is until flush(), or keep() is called. Messages to one peer keep
  // their order. False: failed, as in the following; the port's owner knows why.
  virtual bool send(int peer, const std::byte* data, size_t bytes) = 0;
  // Waits for the peer's next message, which has as many bytes; what was sent goes on meanwhile.
  virtual bool receive(int peer, std::byte* data, size_t bytes) = 0;
  // This memory is about to change: what messages still have to read of it is set aside.
  virtual void keep(const std::byte* data, size_t bytes) = 0;
  // Waits until all has gone.
  virtual bool flush() = 0;
  // Forgets what was sent and has not gone: the program has failed.
  virtual void drop() = 0;
};

}  // namespace collective_ops
