// The way of messages to and from ranks of other hosts, for the engine of messages.h. A connection belongs to
// the rank that sends on it; what the other one asks for goes back over the same. The engine knows ranks by
// ids: first those of its host, by their place there, then the others.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "communicator/job_hosts.h"
#include "transport/tcp/frame_stream.h"

namespace collective_ops {

class RemoteMessages {
 public:
  // `world_ranks` by rank of the group; `channel` is the group's own.
  RemoteMessages(const GroupHosts& hosts, std::vector<int> world_ranks,
                 std::shared_ptr<HostConnector> connector, uint64_t channel);

  int group_size() const { return static_cast<int>(world_ranks_.size()); }
  int ids() const { return group_size(); }
  int id_of(int rank) const { return id_of_[static_cast<size_t>(rank)]; }
  int rank_of(int id) const { return rank_of_[static_cast<size_t>(id)]; }
  int world_rank(int id) const { return world_ranks_[static_cast<size_t>(rank_of(id))]; }
  std::string describe(int id) const { return connector_->describe(world_rank(id)); }

  // A connection to send on, for attach(). Waits for the peer to answer. Any thread, without the engine's
  // lock.
  Result<PrivateDescriptor> dial(int id, int64_t deadline_ns,
                                 const std::function<Status()>& interrupted) const;

  // All that follows: with the engine's lock.
  bool can_send(int id) const { return out_[static_cast<size_t>(id)] != nullptr; }
  void attach(int id, PrivateDescriptor socket);
  bool has_room(int id) const { return out_[static_cast<size_t>(id)]->has_room(); }
  void send(int id, const tcp::Frame& frame, const std::byte* payload);
  // Asks the sender of a message for its bytes.
  void ask(int id, uint32_t slot);
  // Moves what the sockets take and give, and looks for peers that begin to send.
  void progress(const std::function<void(int id, const tcp::Frame&, const std::byte*)>& take);
  bool flushed() const;
  // Whether the peer has said that it takes no more messages, or its connection has ended.
  bool closed(int id) const { return closed_[static_cast<size_t>(id)] != 0; }
  void close_all();

  // What to poll while nothing can be done.
  std::vector<pollfd> pollable() const;

 private:
  const std::vector<int> world_ranks_;
  const std::shared_ptr<HostConnector> connector_;
  const uint64_t channel_;
  int first_;  // id of a rank of another host
  std::vector<int> id_of_, rank_of_;
  std::vector<std::unique_ptr<tcp::FrameStream>> out_, in_;  // by id
  std::vector<uint8_t> closed_;
  int64_t looked_ns_ = 0;
};

}  // namespace collective_ops
