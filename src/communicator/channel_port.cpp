#include "communicator/channel_port.h"

#include <algorithm>

namespace collective_ops {

ChannelPort::ChannelPort(const shm::GroupMemory& memory, int rank, shm::Waiter& waiter)
    : shared_(memory), rank_(rank), waiter_(waiter) {}

shm::Channel ChannelPort::channel(int from, int to) const {
  return {shared_.channel(from, to), shm::GroupMemory::channel_bytes(shared_.world_size())};
}

bool ChannelPort::send(int peer, const std::byte* data, size_t bytes) {
  sends_.push_back({peer, data, bytes, {}});
  push();
  return true;
}

// Moves what fits of every pending message; true if anything moved.
bool ChannelPort::push() {
  bool moved = false;
  for (size_t i = 0; i < sends_.size(); ++i) {
    PendingSend& send = sends_[i];
    const bool behind = std::any_of(sends_.begin(), sends_.begin() + static_cast<ptrdiff_t>(i),
                                    [&](const PendingSend& other) { return other.peer == send.peer; });
    if (behind) continue;  // messages to one peer keep their order
    const size_t taken = channel(rank_, send.peer).write_some(send.data, send.bytes);
    send.data += taken;
    send.bytes -= taken;
    moved |= taken > 0;
  }
  std::erase_if(sends_, [](const PendingSend& send) { return send.bytes == 0; });
  return moved;
}

bool ChannelPort::flush() {
  waiter_.begin_pauses();
  while (!sends_.empty()) {
    const int peer = sends_.front().peer;
    if (push()) {
      waiter_.begin_pauses();
    } else if (!waiter_.pause_once(peer)) {
      return false;
    }
  }
  return true;
}

void ChannelPort::keep(const std::byte* data, size_t bytes) {
  for (PendingSend& send : sends_) {
    if (send.data >= data + bytes || data >= send.data + send.bytes) continue;
    send.kept.assign(send.data, send.data + send.bytes);
    send.data = send.kept.data();
  }
}

bool ChannelPort::receive(int peer, std::byte* data, size_t bytes) {
  waiter_.begin_pauses();
  shm::Channel incoming = channel(peer, rank_);
  while (bytes > 0) {
    const bool pushed = push();
    const size_t given = incoming.read_some(data, bytes);
    data += given;
    bytes -= given;
    if (given > 0 || pushed) {
      waiter_.begin_pauses();
    } else if (!waiter_.pause_once(peer)) {
      return false;
    }
  }
  return true;
}

}  // namespace collective_ops
