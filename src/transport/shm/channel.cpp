#include "transport/shm/channel.h"

#include <algorithm>
#include <cstring>

namespace collective_ops::shm {

Channel::Channel(std::byte* memory, size_t bytes)
    : header_(reinterpret_cast<Header*>(memory)),
      ring_(memory + sizeof(Header)),
      capacity_(bytes - sizeof(Header)) {}

size_t Channel::write_some(const std::byte* from, size_t bytes) {
  const uint64_t written = header_->written.load(std::memory_order_relaxed);
  const uint64_t read = header_->read.load(std::memory_order_acquire);
  const size_t amount = std::min(bytes, capacity_ - static_cast<size_t>(written - read));
  if (amount == 0) return 0;
  const size_t at = written % capacity_;
  const size_t first = std::min(amount, capacity_ - at);
  std::memcpy(ring_ + at, from, first);
  std::memcpy(ring_, from + first, amount - first);
  header_->written.store(written + amount, std::memory_order_release);
  return amount;
}

size_t Channel::read_some(std::byte* to, size_t bytes) {
  const uint64_t read = header_->read.load(std::memory_order_relaxed);
  const uint64_t written = header_->written.load(std::memory_order_acquire);
  const size_t amount = std::min(bytes, static_cast<size_t>(written - read));
  if (amount == 0) return 0;
  const size_t at = read % capacity_;
  const size_t first = std::min(amount, capacity_ - at);
  std::memcpy(to, ring_ + at, first);
  std::memcpy(to + first, ring_, amount - first);
  header_->read.store(read + amount, std::memory_order_release);
  return amount;
}

}  // namespace collective_ops::shm
