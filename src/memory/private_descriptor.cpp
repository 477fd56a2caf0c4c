#include "memory/private_descriptor.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace collective_ops {
namespace {

// One bit for each descriptor; numbers above are not watched, which only costs a child a few more open files.
constexpr size_t kWatched = 1 << 16;
std::array<std::atomic<uint64_t>, kWatched / 64> watched{};

// Only calls that are allowed between fork and exec.
void close_in_child() {
  for (size_t word = 0; word < watched.size(); ++word) {
    for (uint64_t bits = watched[word].load(); bits != 0; bits &= bits - 1) {
      const int fd = static_cast<int>(word * 64) + std::countr_zero(bits);
      const int empty = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (empty < 0) {
        ::close(fd);
        continue;
      }
      ::dup3(empty, fd, O_CLOEXEC);
      ::close(empty);
    }
  }
}

void watch(int fd, bool on) {
  if (fd < 0 || static_cast<size_t>(fd) >= kWatched) return;
  const uint64_t bit = uint64_t{1} << (fd % 64);
  auto& word = watched[static_cast<size_t>(fd) / 64];
  if (on) {
    word.fetch_or(bit);
  } else {
    word.fetch_and(~bit);
  }
}

}  // namespace

PrivateDescriptor::PrivateDescriptor(Descriptor fd) : fd_(std::move(fd)) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, close_in_child);
  (void)registered;
  watch(fd_.get(), true);
}

PrivateDescriptor& PrivateDescriptor::operator=(PrivateDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
  }
  return *this;
}

void PrivateDescriptor::reset() {
  watch(fd_.get(), false);
  fd_.reset();
}

}  // namespace collective_ops
