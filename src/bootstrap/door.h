// The listening TCP socket of a rank, and who knocks there: a connection comes in once it has proved that it
// knows the job's secret. Strangers, slow ones and those that say nothing are shown out, however many.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "bootstrap/address.h"
#include "bootstrap/handshake.h"
#include "memory/private_descriptor.h"

namespace collective_ops {

struct Visitor {
  PrivateDescriptor fd;
  handshake::Claim claim;
};

// Those that could not prove that they know the secret.
struct Refusals {
  uint64_t count = 0;
  SocketAddress last;
};

// Any thread.
class Door {
 public:
  struct Config {
    // The first of these that is free is taken; 0: any.
    std::vector<uint16_t> ports;
    SocketAddress address;   // to listen at; empty: all
    int family = AF_UNSPEC;  // of all: both, or one of them
  };
  // kRendezvous where no port is free, which the text names.
  static Result<std::unique_ptr<Door>> open(const Config& config, int rank);

  uint16_t port() const { return port_; }
  bool any_address() const { return any_address_; }

  // What lets them in. Before this is set, all wait.
  void set_key(const Digest& key);
  // From now on those that come to register hear that it is too late.
  void stop_registering();

  int pollable() const { return epoll_.get(); }
  void serve();  // never blocks

  // The newest one that came for this; earlier ones are dropped, since who asks again has given them up.
  std::optional<Visitor> take(int rank, uint32_t purpose, uint64_t channel);
  std::optional<Visitor> take_any(uint32_t purpose);  // the oldest

  Refusals refusals() const;
  // Whether somebody could not be let in since this process may open no more files. Asking forgets it.
  bool starved();

 private:
  struct Pending {
    PrivateDescriptor fd;
    handshake::Answering answering;
    int64_t until_ns = 0;
    SocketAddress from;
  };
  Door(PrivateDescriptor listener, PrivateDescriptor epoll, int rank, bool any_address);
  void accept_all();
  void advance(int fd);
  void admit(Pending pending);
  void show_out_slow();

  const int rank_;
  const PrivateDescriptor listener_;
  const PrivateDescriptor epoll_;
  const uint16_t port_;
  const bool any_address_;
  mutable std::mutex mutex_;  // of what follows
  std::optional<Digest> key_;
  bool registering_ = true;
  bool starved_ = false;
  std::list<Pending> pending_;  // oldest first
  std::deque<Visitor> visitors_;
  Refusals refusals_;
};

// What every connection between ranks has: no delay of small packets, signs of life, non-blocking.
void prepare_connection(int fd);

}  // namespace collective_ops
