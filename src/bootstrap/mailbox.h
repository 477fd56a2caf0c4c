// Small messages, each with at most one descriptor, between the ranks of a group after they joined.
// A message is one connection to the receiver's listening socket: nothing stays open between two, and
// no thread is needed. Only members get in: user, process id and the secret of the join are checked.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "memory/descriptor.h"
#include "memory/private_descriptor.h"

namespace collective_ops {

inline constexpr size_t kMaxMailHeader = 16 * 1024;  // bytes

struct Message {
  int rank = 0;  // who sent it
  std::vector<std::byte> header;
  Descriptor fd;  // not valid where none came
};

class Mailbox {
 public:
  struct Config {
    std::string job;
    int rank = 0;
    std::vector<pid_t> members;  // by rank
    uint64_t secret[2] = {0, 0};
    PrivateDescriptor listener;  // of this rank
  };
  explicit Mailbox(Config config);
  ~Mailbox();

  // Does not wait for the receiver to look. `fd` stays the caller's; -1 for none. kPeerLost where the
  // rank has left, kTimeout where its queue stays full for ten seconds, kInvalidArgument for a header
  // that is too long. Any thread.
  Status send(int rank, std::span<const std::byte> header, int fd);

  // The first message for which `wanted` is true; others are kept for later calls. `deadline_ns` is
  // monotonic. `interrupted` is asked every few milliseconds; a failure ends the wait with it.
  // kTimeout at the deadline. Any thread.
  Result<Message> receive(const std::function<bool(const Message&)>& wanted, int64_t deadline_ns,
                          const std::function<Status()>& interrupted = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace collective_ops
