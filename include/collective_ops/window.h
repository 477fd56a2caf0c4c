// Memory that the ranks of a group on one host lay open to each other: plain loads and stores reach every
// part, and signals order them. For what collectives are too coarse for, as torch's symmetric memory.
//
//   auto part = Communicator::allocate_part(bytes + Window::signal_bytes(ranks, channels));
//   auto window = comm->open_window(*part, Window::signal_bytes(ranks, channels));   // every rank
//   (*window)->data(peer)[i] = value;
//   (*window)->signal(peer, channel);      // there: (*window)->await(this rank, channel)
//
// A signal is a 32-bit word at the end of the receiver's part, one for each channel and sender: 0, or 1 while
// it is up. Words that are written by other means work together with these, as long as they end at 0.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <collective_ops/status.h>

namespace collective_ops {

class Window {
 public:
  using Timeout = std::optional<std::chrono::milliseconds>;  // zero: for ever; default exec_timeout

  // What `channels` need of each part.
  static constexpr size_t signal_bytes(int world_size, int channels) {
    return static_cast<size_t>(world_size) * static_cast<size_t>(channels) * sizeof(uint32_t);
  }

  virtual ~Window() = default;

  // Where rank's part lies in this process, and its bytes, signals included; nullptr and 0 where that rank
  // gave none. Stays as long as this window, also when its owner has freed its part, left or died.
  virtual std::byte* data(int rank) const = 0;
  virtual size_t size(int rank) const = 0;

  // Raises this rank's signal on `to`; waits for one that is still up to be taken. What was written before is
  // seen by whoever takes it. Any thread, on one channel one at a time.
  //   kInvalidArgument  no such rank or channel
  //   kTimeout, kPeerLost (that rank is dead), kInterrupted, and what broke the group meanwhile
  virtual Status signal(int to, int channel, Timeout timeout = std::nullopt) = 0;
  // Waits for `from`'s signal, and takes it down.
  virtual Status await(int from, int channel, Timeout timeout = std::nullopt) = 0;
  // Every rank signals every other, and awaits it.
  virtual Status barrier(int channel, Timeout timeout = std::nullopt) = 0;
};

}  // namespace collective_ops
