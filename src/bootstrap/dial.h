// Reaching another process by one of its addresses.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "bootstrap/address.h"
#include "bootstrap/handshake.h"
#include "memory/private_descriptor.h"

namespace collective_ops {

// How somebody waits here: until when, what ends it early, and what is done meanwhile.
struct Waiting {
  int64_t deadline_ns = 0;
  std::function<Status()> interrupted;  // asked at least ten times a second
  int pollable = -1;                    // looked at besides; readable: `serve` is called
  std::function<Status()> serve;        // a failure ends the wait with it

  // Asks and serves. kTimeout, without a text, at the deadline.
  Status check() const;
  // Sleeps until one of `polled` is ready, `until_ns` or the deadline; then as check().
  Status poll(std::vector<pollfd>& polled, int64_t until_ns) const;
};

struct DialTarget {
  std::vector<SocketAddress> addresses;  // best first
  SocketAddress source;                  // of our end; empty: the system's choice
  // Whether the addresses may lead to different processes, of which the right one is to be found; else to
  // one.
  bool search = false;
};

struct Dialled {
  enum class Outcome {
    kConnected,
    kEnded,        // the wait was: `status`
    kUnreachable,  // no address answered
    kNobody,       // the host answers, and nobody listens there
    kStranger,     // something else listens there
    kRefused,      // it does not accept our secret
    kWrongRank,
    kOver,  // that job has formed already
  };
  Outcome outcome = Outcome::kUnreachable;
  PrivateDescriptor fd;
  SocketAddress address;  // that was reached
  Status status;
  std::string text;  // what became of each address: "10.0.0.2:60001: connection refused"
};

// Tries all addresses once: one after the other, the next without waiting long for the one before. The
// connection has been prepared (door.h) and carries nothing but the handshake.
Dialled dial(const DialTarget& target, const Digest& key, const handshake::Claim& claim,
             const Waiting& waiting);

}  // namespace collective_ops
