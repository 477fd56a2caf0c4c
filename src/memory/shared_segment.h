// One piece of memory that processes share by passing its descriptor: a memfd, never a file, so that
// nothing is left behind whatever ends the processes. Its size is sealed: a peer cannot shrink it and
// make our loads raise SIGBUS.
#pragma once

#include <cstddef>
#include <string_view>

#include <collective_ops/status.h>

#include "memory/descriptor.h"

namespace collective_ops {

// The descriptor's name, as /proc/<pid>/fd and /proc/<pid>/maps show it.
inline constexpr const char* kSegmentName = "collective-ops";
inline constexpr const char* kControlSegmentName = "collective-ops-control";  // of a group of ranks

class SharedSegment {
 public:
  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  // New zeroed memory, mapped, close-on-exec. Rounded up to whole pages, from 2 MiB on to whole 2 MiB,
  // aligned likewise and advised to use huge pages. Pages are taken when touched, or by populate().
  // kOutOfMemory where it does not fit (memory/headroom.h), kSystem where a call fails.
  static Result<SharedSegment> create(size_t bytes, std::string_view what, const char* name = kSegmentName);

  // Maps what a peer created. Takes `fd` over, also when it fails. kInvalidArgument unless it is a
  // memfd sealed against shrinking.
  static Result<SharedSegment> map(int fd);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // bytes mapped
  int fd() const { return fd_.get(); }   // stays owned here; -1 after close_fd()
  void close_fd() { fd_.reset(); }       // the mapping stays

  // Takes the pages of [offset, offset + bytes) now, in pieces that are each checked against the
  // limits, so that memory that is not there is kOutOfMemory here and no signal later. Contents stay.
  Status populate(size_t offset, size_t bytes);

  // Gives the pages inside [offset, offset + bytes) back to the system at once, also where peers have
  // them mapped. Contents are lost. Needs the descriptor.
  void discard(size_t offset, size_t bytes);

 private:
  SharedSegment(Descriptor fd, std::byte* data, size_t size) : fd_(std::move(fd)), data_(data), size_(size) {}
  static Result<SharedSegment> map_sized(Descriptor fd, size_t size);

  Descriptor fd_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace collective_ops
