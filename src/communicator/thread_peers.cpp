// Ranks that are threads of one process: every address is valid for all of them.
#include <cstring>

#include <fmt/format.h>

#include "communicator/peers.h"

namespace collective_ops {
namespace {

class ThreadPeers final : public Peers {
 public:
  std::string find_lost(const std::function<bool(int)>&) override { return {}; }
  std::string describe(int rank) const override { return fmt::format("rank {}", rank); }

  Result<shm::MemoryRef> share(const void* pointer, size_t) override {
    return shm::MemoryRef{1, reinterpret_cast<uint64_t>(pointer)};
  }
  Result<std::byte*> reach(int, const shm::MemoryRef& reference, size_t, int64_t,
                           const std::function<Status()>&) override {
    return reinterpret_cast<std::byte*>(reference.offset);
  }
  Status read(int, const std::byte* from, std::byte* to, size_t bytes) override {
    std::memcpy(to, from, bytes);
    return {};
  }
  bool can_read(int, const std::byte*, std::byte*, size_t) override { return false; }  // never needed
};

}  // namespace

std::unique_ptr<Peers> make_thread_peers() { return std::make_unique<ThreadPeers>(); }

}  // namespace collective_ops
