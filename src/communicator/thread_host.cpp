// Ranks that are threads of one process: every address is valid for all of them, and they meet in a table.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "communicator/host.h"

namespace collective_ops {
namespace {

class ThreadPeers final : public Peers {
 public:
  explicit ThreadPeers(const Members& members) : members_(members) {}

  std::string find_lost(const std::function<bool(int)>&) override { return {}; }
  std::string describe(int rank) const override { return fmt::format("rank {}", members_.world_rank(rank)); }

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
  bool can_read(int, const std::byte*, std::byte*, size_t) override { return false; }

 private:
  Members members_;
};

// Groups that some members have come to, and others have not.
struct Board {
  struct Open {
    std::shared_ptr<std::byte> memory;
    size_t taken = 0;
  };
  using Key = std::tuple<uint32_t, std::string, std::vector<int>, uint32_t>;  // parent, ..., number

  const std::shared_ptr<std::byte> world;
  std::mutex mutex;
  std::map<Key, Open> open;

  explicit Board(std::shared_ptr<std::byte> memory) : world(std::move(memory)) {}
};

class ThreadHost final : public Host {
 public:
  ThreadHost(std::shared_ptr<Board> board, int world_size, int rank)
      : Host(shm::GroupMemory(board->world.get(), world_size), rank), board_(std::move(board)) {}

  std::unique_ptr<Peers> peers_of(const Members& members) override {
    return std::make_unique<ThreadPeers>(members);
  }

  // Whoever comes first makes it.
  Result<std::shared_ptr<std::byte>> memory_for(const Meeting& meeting) override {
    const Members& members = meeting.members;
    const std::lock_guard lock(board_->mutex);
    const Board::Key key{members.parent, members.name, members.ranks, meeting.number};
    Board::Open& open = board_->open[key];
    if (open.memory == nullptr) {
      const int size = static_cast<int>(members.ranks.size());
      auto memory = thread_memory(shm::GroupMemory::bytes_needed(size));
      if (!memory.ok()) {
        board_->open.erase(key);
        return memory.status();
      }
      open.memory = std::move(*memory);
      shm::GroupMemory(open.memory.get(), size).name_group(members.id, members.name, members.ranks);
    }
    std::shared_ptr<std::byte> memory = open.memory;
    if (++open.taken == members.ranks.size()) board_->open.erase(key);
    return memory;
  }

  Status given_up(const Meeting&) override { return {}; }  // nobody waits there

 private:
  std::shared_ptr<Board> board_;
};

}  // namespace

std::vector<std::shared_ptr<Host>> make_thread_hosts(int world_size, std::shared_ptr<std::byte> memory) {
  const auto board = std::make_shared<Board>(std::move(memory));
  std::vector<std::shared_ptr<Host>> hosts;
  hosts.reserve(static_cast<size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank)
    hosts.push_back(std::make_shared<ThreadHost>(board, world_size, rank));
  return hosts;
}

Result<std::shared_ptr<std::byte>> thread_memory(size_t bytes) {
  void* data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return Status(ErrorCode::kOutOfMemory, fmt::format("no room for the {} bytes that threads share: {}",
                                                       bytes, std::strerror(errno)));
  }
  return std::shared_ptr<std::byte>(static_cast<std::byte*>(data),
                                    [bytes](std::byte* begin) { ::munmap(begin, bytes); });
}

}  // namespace collective_ops
