// Connections between threads of one process that stand for ranks of several hosts.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "communicator/job_hosts.h"

namespace collective_ops {
namespace {

using Pair = std::pair<PrivateDescriptor, PrivateDescriptor>;

Result<Pair> connected_pair() {
  const auto failed = [](const char* call) {
    return Status(ErrorCode::kSystem,
                  fmt::format("connecting two threads: {}: {}", call, std::strerror(errno)));
  };
  Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Descriptor there(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid() || !there.valid()) return failed("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  if (::bind(listener.get(), plain, length) != 0) return failed("bind");
  if (::listen(listener.get(), 1) != 0) return failed("listen");
  if (::getsockname(listener.get(), plain, &length) != 0) return failed("getsockname");
  if (::connect(there.get(), plain, length) != 0) return failed("connect");
  Descriptor here(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!here.valid()) return failed("accept4");
  return Pair(PrivateDescriptor(std::move(here)), PrivateDescriptor(std::move(there)));
}

// Ends of connections that one side has asked for, and the other has not yet.
class ConnectionBoard {
 public:
  Result<PrivateDescriptor> take(int rank, int peer, uint64_t channel) {
    const std::lock_guard lock(mutex_);
    const auto key = std::tuple(std::min(rank, peer), std::max(rank, peer), channel);
    if (const auto found = open_.find(key); found != open_.end()) {
      PrivateDescriptor end = std::move(found->second);
      open_.erase(found);
      return end;
    }
    auto pair = connected_pair();
    if (!pair.ok()) return pair.status();
    open_.emplace(key, std::move(pair->second));
    return std::move(pair->first);
  }

  Result<PrivateDescriptor> dial(int from, int to, uint64_t channel) {
    auto pair = connected_pair();
    if (!pair.ok()) return pair.status();
    const std::lock_guard lock(mutex_);
    dialled_.insert_or_assign(std::tuple(from, to, channel), std::move(pair->second));
    return std::move(pair->first);
  }

  std::optional<PrivateDescriptor> take_dialled(int from, int to, uint64_t channel) {
    const std::lock_guard lock(mutex_);
    const auto found = dialled_.find(std::tuple(from, to, channel));
    if (found == dialled_.end()) return std::nullopt;
    PrivateDescriptor end = std::move(found->second);
    dialled_.erase(found);
    return end;
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<int, int, uint64_t>, PrivateDescriptor> open_;     // by both ranks, the lower first
  std::map<std::tuple<int, int, uint64_t>, PrivateDescriptor> dialled_;  // by who dialled, and whom
};

class ThreadConnector final : public HostConnector {
 public:
  ThreadConnector(std::shared_ptr<ConnectionBoard> board, int rank) : board_(std::move(board)), rank_(rank) {}

  Result<PrivateDescriptor> connect(int rank, uint64_t channel, int64_t,
                                    const std::function<Status()>&) override {
    return board_->take(rank_, rank, channel);
  }
  Result<PrivateDescriptor> dial(int rank, uint64_t channel, int64_t,
                                 const std::function<Status()>&) override {
    return board_->dial(rank_, rank, channel);
  }
  std::optional<PrivateDescriptor> take(int rank, uint64_t channel) override {
    return board_->take_dialled(rank, rank_, channel);
  }
  int pollable() const override { return -1; }
  Status look() override { return {}; }
  std::string describe(int rank) const override { return fmt::format("rank {}", rank); }

 private:
  std::shared_ptr<ConnectionBoard> board_;
  int rank_;
};

}  // namespace

std::vector<std::shared_ptr<HostConnector>> make_thread_connectors(int world_size) {
  const auto board = std::make_shared<ConnectionBoard>();
  std::vector<std::shared_ptr<HostConnector>> connectors;
  for (int rank = 0; rank < world_size; ++rank)
    connectors.push_back(std::make_shared<ThreadConnector>(board, rank));
  return connectors;
}

}  // namespace collective_ops
