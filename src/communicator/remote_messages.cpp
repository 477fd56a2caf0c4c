#include "communicator/remote_messages.h"

#include <utility>

#include "base/clock.h"
#include "transport/tcp/link.h"

namespace collective_ops {
namespace {

// Between two looks for peers that have begun to send.
constexpr int64_t kLookNs = 200'000;

}  // namespace

RemoteMessages::RemoteMessages(const GroupHosts& hosts, std::vector<int> world_ranks,
                               std::shared_ptr<HostConnector> connector, uint64_t channel)
    : world_ranks_(std::move(world_ranks)),
      connector_(std::move(connector)),
      channel_(channel),
      first_(static_cast<int>(hosts.here().size())),
      id_of_(world_ranks_.size()),
      rank_of_(hosts.here()),
      out_(world_ranks_.size()),
      in_(world_ranks_.size()),
      closed_(world_ranks_.size()) {
  for (int rank = 0; rank < group_size(); ++rank) {
    if (hosts.host_of[static_cast<size_t>(rank)] != hosts.own) rank_of_.push_back(rank);
  }
  for (int id = 0; id < ids(); ++id) id_of_[static_cast<size_t>(rank_of(id))] = id;
}

Result<PrivateDescriptor> RemoteMessages::dial(int id, int64_t deadline_ns,
                                               const std::function<Status()>& interrupted) const {
  auto socket = connector_->dial(world_rank(id), channel_, deadline_ns, interrupted);
  if (!socket.ok()) return socket;
  if (Status status = tcp::prepare_socket(socket->get()); !status.ok()) return status;
  return socket;
}

void RemoteMessages::attach(int id, PrivateDescriptor socket) {
  auto& place = out_[static_cast<size_t>(id)];
  if (place == nullptr) place = std::make_unique<tcp::FrameStream>(std::move(socket));
}

void RemoteMessages::send(int id, const tcp::Frame& frame, const std::byte* payload) {
  out_[static_cast<size_t>(id)]->write(frame, payload);
}

void RemoteMessages::ask(int id, uint32_t slot) {
  in_[static_cast<size_t>(id)]->write({.kind = tcp::FrameKind::kWanted, .slot = slot}, nullptr);
}

void RemoteMessages::progress(const std::function<void(int, const tcp::Frame&, const std::byte*)>& take) {
  const int64_t now = monotonic_ns();
  const bool looks = now - looked_ns_ >= kLookNs;
  if (looks) {
    looked_ns_ = now;
    (void)connector_->look();  // answers those that dial; a death is told to who waits
  }
  for (int id = first_; id < ids(); ++id) {
    const auto at = static_cast<size_t>(id);
    if (looks && in_[at] == nullptr) {
      if (auto socket = connector_->take(world_rank(id), channel_)) {
        if (tcp::prepare_socket(socket->get()).ok())
          in_[at] = std::make_unique<tcp::FrameStream>(std::move(*socket));
      }
    }
    for (auto* streams : {&out_, &in_}) {
      tcp::FrameStream* stream = (*streams)[at].get();
      if (stream == nullptr) continue;
      stream->push();
      stream->pull([&](const tcp::Frame& frame, const std::byte* payload) {
        if (frame.kind == tcp::FrameKind::kClosing) {
          closed_[at] = 1;
        } else {
          take(id, frame, payload);
        }
      });
      if (!stream->status().ok()) closed_[at] = 1;
    }
  }
}

bool RemoteMessages::flushed() const {
  for (const auto* streams : {&out_, &in_}) {
    for (const auto& stream : *streams) {
      if (stream != nullptr && stream->status().ok() && !stream->flushed()) return false;
    }
  }
  return true;
}

void RemoteMessages::close_all() {
  for (const auto* streams : {&out_, &in_}) {
    for (const auto& stream : *streams) {
      if (stream != nullptr) stream->write({.kind = tcp::FrameKind::kClosing}, nullptr);
    }
  }
}

std::vector<pollfd> RemoteMessages::pollable() const {
  std::vector<pollfd> all;
  if (const int knocking = connector_->pollable(); knocking >= 0) all.push_back({knocking, POLLIN, 0});
  for (const auto* streams : {&out_, &in_}) {
    for (const auto& stream : *streams) {
      if (stream == nullptr || !stream->status().ok()) continue;
      const auto events = static_cast<short>(stream->flushed() ? POLLIN : POLLIN | POLLOUT);
      all.push_back({stream->fd(), events, 0});
    }
  }
  return all;
}

}  // namespace collective_ops
