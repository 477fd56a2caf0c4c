// A byte stream from one rank to another in shared memory: one writer, one reader, a ring of bytes.
// Neither side waits here: the caller polls, and moves both directions in one loop.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace collective_ops::shm {

class Channel {
 public:
  // `memory`: zeroed, shared, GroupMemory::channel_bytes() long.
  Channel(std::byte* memory, size_t bytes);

  size_t write_some(const std::byte* from, size_t bytes);  // bytes taken, 0 where full
  size_t read_some(std::byte* to, size_t bytes);           // bytes given, 0 where empty

 private:
  struct Header {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
  };
  Header* header_;
  std::byte* ring_;
  size_t capacity_;
};

}  // namespace collective_ops::shm
