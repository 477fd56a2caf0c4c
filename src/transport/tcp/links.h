// The links of one rank in one group, made on first use, and how it waits on them: it tries what it has open,
// yields, then sleeps in epoll until a socket has something. While it sleeps it looks every few milliseconds
// for the deadline and whatever else its owner watches.
//
// No thread: bytes move while their rank is inside a call here. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "memory/private_descriptor.h"
#include "transport/shm/pause.h"
#include "transport/tcp/link.h"

namespace collective_ops::tcp {

// What only the owner of the links knows. Peers are ranks of the group.
class LinkOwner {
 public:
  virtual ~LinkOwner() = default;

  // Connection `number` (from 0) between this rank and `peer`, which asks for the same one meanwhile.
  virtual Result<PrivateDescriptor> connect(int peer, uint32_t number, int64_t deadline_ns) = 0;
  // Not ok where the call cannot go on: a failure elsewhere, an interrupt. Called every few milliseconds of a
  // wait. `deadline_ns` has passed where `late`.
  virtual Status check(int peer, bool late) = 0;
  // Readable where check() has news; -1: never.
  virtual int pollable() const = 0;
  // The peer makes another call: its header and ours.
  virtual Status differs(int peer, const Header& theirs, const Header& ours) = 0;
  // The peer has broken the group, or refused a call.
  virtual Status noticed(int peer, const Notice& notice) = 0;
  // The connection to `peer` has ended with `how`, and no notice said why.
  virtual Status lost(int peer, const std::string& how) = 0;
};

struct LinksSettings {
  int world_size = 1;
  int connections = 1;          // per link, for data
  bool oversubscribed = false;  // more ranks than cores: yields at once
};

class Links {
 public:
  // `pace`: of this rank in the group.
  Links(LinkOwner& owner, shm::HostsPace& pace, const LinksSettings& settings);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // Until begin() is called again: kNoDeadline for ever.
  void begin(int64_t deadline_ns) { deadline_ns_ = deadline_ns; }

  // Begins a message, whose memory stays until it has gone or keep() was called.
  Status send(int peer, const Header& header, const std::byte* data);
  // Waits for one, and moves what else is open meanwhile.
  Status receive(int peer, const Header& header, std::byte* data);
  // Moves what the sockets take of what is open, without waiting.
  void push() { (void)push_all(); }
  // Waits until all messages have gone.
  Status flush();
  void keep(const std::byte* data, size_t bytes);
  // Forgets what is open: the group has failed.
  void drop();

  // Makes the link with `peer`, unless there is one.
  Status reach(int peer);
  // To all peers that there is a link with.
  void tell(const Notice& notice);
  // Nanoseconds that calls have waited for each peer's messages to begin, since the last clear; for traces.
  std::vector<int64_t>& waited_ns() { return waited_ns_; }

 private:
  struct Pace {
    int turns = 0;
    int64_t yields_until_ns = 0;
    int64_t nap_ns = 0;
    bool is_slow = false;  // the message comes more slowly than it is worth trying for

    // The same message goes on.
    Pace after_progress() const { return {.is_slow = is_slow || nap_ns != 0}; }
  };

  Result<Link*> link(int peer);
  Status watch(int fd, uint32_t events);
  bool push_all();
  Status pause(int peer, Pace& pace);
  Status sleep(int peer, Pace& pace);
  Status read_notices(int peer);
  Status look(int peer);
  Status ended(int peer);

  LinkOwner& owner_;
  shm::HostsPace& pace_;
  const LinksSettings settings_;
  int64_t deadline_ns_;
  Descriptor epoll_;
  std::vector<std::unique_ptr<Link>> links_;  // by peer; empty: not connected yet
  std::vector<int> linked_;                   // peers that have one
  std::vector<uint8_t> left_;
  std::vector<int64_t> waited_ns_;
};

}  // namespace collective_ops::tcp
