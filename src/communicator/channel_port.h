// Messages of programs through the group's memory: a byte stream for each ordered pair of ranks.
#pragma once

#include <cstddef>
#include <vector>

#include "communicator/message_port.h"
#include "transport/shm/channel.h"
#include "transport/shm/group_memory.h"
#include "transport/shm/waiter.h"

namespace collective_ops {

class ChannelPort final : public MessagePort {
 public:
  // Failures are found, and told, by the waiter.
  ChannelPort(const shm::GroupMemory& memory, int rank, shm::Waiter& waiter);

  bool send(int peer, const std::byte* data, size_t bytes) override;
  bool receive(int peer, std::byte* data, size_t bytes) override;
  void keep(const std::byte* data, size_t bytes) override;
  bool flush() override;
  void drop() override { sends_.clear(); }

 private:
  struct PendingSend {
    int peer;
    const std::byte* data;
    size_t bytes;
    std::vector<std::byte> kept;  // a copy, where the source had to be overwritten
  };

  bool push();
  shm::Channel channel(int from, int to) const;

  shm::GroupMemory shared_;
  int rank_;
  shm::Waiter& waiter_;
  std::vector<PendingSend> sends_;
};

}  // namespace collective_ops
