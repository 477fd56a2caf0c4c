#include "memory/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "memory/headroom.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace collective_ops {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// Between two looks at the limits: eight ranks that look at once overrun by at most 32 MiB.
constexpr size_t kPopulatePiece = size_t{4} << 20;

size_t page_size() {
  static const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

Status failed(std::string_view call, std::string_view what, int error) {
  std::string advice;
  if (error == EMFILE) advice = "; this process has too many open files (RLIMIT_NOFILE): raise ulimit -n";
  if (error == ENFILE) advice = "; the machine has too many open files: raise fs.file-max";
  const bool memory = error == ENOMEM || error == ENOSPC;
  if (memory) advice = "; check ulimit -v, vm.max_map_count and vm.overcommit_memory";
  return Status(memory ? ErrorCode::kOutOfMemory : ErrorCode::kSystem,
                fmt::format("{}: {} failed: {}{}", what, call, std::strerror(error), advice));
}

// Address space for `size` bytes that begins at a huge page, so that the kernel can use some.
void* reserve_aligned(size_t size) {
  void* raw =
      ::mmap(nullptr, size + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const size_t before = round_up(address, kHugePage) - address;
  std::byte* aligned = begin + before;
  if (before > 0) ::munmap(begin, before);
  if (before < kHugePage) ::munmap(aligned + size, kHugePage - before);
  return aligned;
}

// Writes nothing, but as the kernel sees it each page is written: for kernels without MADV_POPULATE_WRITE.
void touch(std::byte* begin, size_t bytes) {
  for (size_t at = 0; at < bytes; at += page_size()) {
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(begin + at), 0, __ATOMIC_RELAXED);
  }
}

// Takes whole huge pages at once. Works where shmem_enabled is "never" too, since it is asked for by name;
// nearly doubles what collectives on large buffers move a second. False: take small pages instead.
bool take_huge_pages(std::byte* begin, size_t bytes) {
  static std::atomic<bool> supported{true};
  if (!supported.load(std::memory_order_relaxed)) return false;
  // The kernel refuses an area of which this process has no page at all, as if it could not do it.
  for (size_t at = 0; at < bytes; at += kHugePage) touch(begin + at, 1);
  if (::madvise(begin, bytes, MADV_COLLAPSE) == 0) return true;
  if (errno == EINVAL) supported.store(false, std::memory_order_relaxed);
  return false;
}

}  // namespace

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Result<SharedSegment> SharedSegment::create(size_t bytes, std::string_view what, const char* name) {
  if (bytes > SIZE_MAX / 2) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("{}: {} bytes is no size", what, bytes));
  }
  const size_t size = round_up(std::max<size_t>(bytes, 1), bytes >= kHugePage ? kHugePage : page_size());
  if (Status status = check_headroom(size, what); !status.ok()) return status;
  Descriptor fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return failed("memfd_create", what, errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return failed("ftruncate", what, errno);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return failed("fcntl(F_ADD_SEALS)", what, errno);
  }
  return map_sized(std::move(fd), size);
}

Result<SharedSegment> SharedSegment::map(int fd) {
  Descriptor owned(fd);
  struct stat about {};
  if (::fstat(fd, &about) != 0) return failed("fstat", "shared memory of a peer", errno);
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || about.st_size <= 0) {
    return Status(ErrorCode::kInvalidArgument,
                  "shared memory of a peer: the descriptor is no memfd sealed against shrinking");
  }
  return map_sized(std::move(owned), static_cast<size_t>(about.st_size));
}

Result<SharedSegment> SharedSegment::map_sized(Descriptor fd, size_t size) {
  const bool large = size >= kHugePage;
  void* place = large ? reserve_aligned(size) : nullptr;
  if (large && place == nullptr) return failed("mmap", fmt::format("{} bytes of shared memory", size), errno);
  void* data = ::mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | (large ? MAP_FIXED : 0), fd.get(), 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    if (large) ::munmap(place, size);
    return failed("mmap", fmt::format("{} bytes of shared memory", size), error);
  }
  if (large) ::madvise(data, size, MADV_HUGEPAGE);  // where the system allows it for shared memory
  return SharedSegment(std::move(fd), static_cast<std::byte*>(data), size);
}

Status SharedSegment::populate(size_t offset, size_t bytes) {
  if (offset > size_ || bytes > size_ - offset) {
    return Status(ErrorCode::kInternal,
                  fmt::format("populate: {} + {} is outside of {} bytes", offset, bytes, size_));
  }
  const size_t unit = size_ >= kHugePage ? kHugePage : page_size();
  const size_t end = round_up(offset + bytes, unit);
  for (size_t at = offset / unit * unit; at < end; at += kPopulatePiece) {
    const size_t piece = std::min(kPopulatePiece, end - at);
    if (Status status = check_headroom(piece, "pages of shared memory"); !status.ok()) return status;
    if (unit == kHugePage && take_huge_pages(data_ + at, piece)) continue;
    int error = 0;
    do {
      error = ::madvise(data_ + at, piece, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    } while (error == EINTR || error == EAGAIN);
    if (error == EINVAL) {
      touch(data_ + at, piece);
    } else if (error == EFAULT || error == ENOMEM) {
      return failed("madvise(MADV_POPULATE_WRITE)", fmt::format("{} bytes of shared memory", bytes), ENOMEM);
    } else if (error != 0) {
      return failed("madvise(MADV_POPULATE_WRITE)", fmt::format("{} bytes of shared memory", bytes), error);
    }
  }
  return Status();
}

void SharedSegment::discard(size_t offset, size_t bytes) {
  if (fd_.valid() && bytes > 0) {
    ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(bytes));
  }
}

}  // namespace collective_ops
