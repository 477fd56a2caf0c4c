// A small all-gather among some ranks: up a tree over them to the first, and down again.
#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/cluster.h"
#include "bootstrap/cluster_forming.h"

namespace collective_ops {
namespace {

// Of name and ranks, so that two exchanges do not meet.
uint64_t channel_of(std::span<const int> ranks, const std::string& name) {
  Packer packer;
  packer.text(name);
  for (const int rank : ranks) packer.number(rank);
  const std::string bytes = packer.take();
  const Digest digest = hmac(Digest{}, std::as_bytes(std::span(bytes)));
  uint64_t channel = 0;
  std::copy_n(digest.begin(), sizeof(channel), reinterpret_cast<std::byte*>(&channel));
  return channel;
}

class Exchange {
 public:
  Exchange(Cluster& cluster, std::span<const int> ranks, const std::string& name, int64_t deadline_ns,
           const std::function<Status()>& interrupted)
      : cluster_(cluster),
        ranks_(ranks),
        name_(name),
        channel_(channel_of(ranks, name)),
        waiting_{deadline_ns, interrupted, cluster.pollable(), [&cluster] { return cluster.serve(); }} {}

  Result<std::vector<std::string>> run(std::string_view mine) {
    const auto place = std::find(ranks_.begin(), ranks_.end(), cluster_.rank());
    if (place == ranks_.end()) {
      return Status(
          ErrorCode::kInvalidArgument,
          fmt::format("rank {} is not among the ranks of the exchange \"{}\"", cluster_.rank(), name_));
    }
    const int index = static_cast<int>(place - ranks_.begin());
    values_.resize(ranks_.size());
    values_[static_cast<size_t>(index)] = mine;
    if (Status status = gather(index); !status.ok()) return status;
    for (FrameLink& link : children_) link.send(FrameKind::kExchange, pack_all());
    for (FrameLink& link : children_) {
      if (Status status = finish(link); !status.ok()) return status;
    }
    return std::move(values_);
  }

 private:
  // From those below, then through the one above what all have.
  Status gather(int index) {
    const int size = static_cast<int>(ranks_.size());
    std::vector<int> below = {index};
    for (const int child : forming::children_of(index, size)) {
      auto fd = cluster_.accept(rank_at(child), Purpose::kExchange, channel_, waiting_.deadline_ns,
                                waiting_.interrupted);
      if (!fd.ok()) return fd.status();
      children_.emplace_back(std::move(*fd));
      if (Status status = receive(children_.back(), rank_at(child), &below); !status.ok()) return status;
    }
    if (index == 0) return Status();
    const int above = rank_at(forming::parent_of(index));
    auto fd =
        cluster_.connect(above, Purpose::kExchange, channel_, waiting_.deadline_ns, waiting_.interrupted);
    if (!fd.ok()) return fd.status();
    FrameLink link(std::move(*fd));
    link.send(FrameKind::kExchange, pack(below));
    if (Status status = finish(link); !status.ok()) return status;
    return receive(link, above, nullptr);
  }

  int rank_at(int index) const { return ranks_[static_cast<size_t>(index)]; }

  std::string pack(const std::vector<int>& indices) const {
    Packer packer;
    packer.number(static_cast<int64_t>(indices.size()));
    for (const int index : indices) packer.number(index).text(values_[static_cast<size_t>(index)]);
    return packer.take();
  }

  std::string pack_all() const {
    std::vector<int> all;
    for (size_t index = 0; index < values_.size(); ++index) all.push_back(static_cast<int>(index));
    return pack(all);
  }

  Status receive(FrameLink& link, int from, std::vector<int>* indices) {
    NetFrame frame;
    for (;;) {
      const auto received = link.receive(frame);
      if (received == FrameLink::Received::kFrame) break;
      if (received == FrameLink::Received::kClosed) {
        return Status(ErrorCode::kPeerLost,
                      fmt::format("exchange \"{}\": {} ended, or left it for an error of its "
                                  "own; see its output",
                                  name_, cluster_.describe(from)));
      }
      if (Status status = wait(link, POLLIN, from); !status.ok()) return status;
    }
    Unpacker unpacker(frame.body);
    const int64_t count = unpacker.number();
    for (int64_t i = 0; i < count && unpacker.ok(); ++i) {
      const int64_t index = unpacker.number();
      std::string value = unpacker.text();
      if (index < 0 || index >= static_cast<int64_t>(values_.size())) break;
      values_[static_cast<size_t>(index)] = std::move(value);
      if (indices != nullptr) indices->push_back(static_cast<int>(index));
    }
    if (unpacker.done()) return Status();
    return Status(ErrorCode::kInternal, fmt::format("exchange \"{}\": {} sent what cannot be read", name_,
                                                    cluster_.describe(from)));
  }

  Status finish(FrameLink& link) {
    while (link.unsent()) {
      if (!link.flush()) return Status();  // the other side has gone, which its own error says
      if (Status status = wait(link, POLLOUT, -1); !status.ok()) return status;
    }
    return Status();
  }

  Status wait(const FrameLink& link, int events, int from) {
    std::vector<pollfd> polled = {{link.fd(), static_cast<short>(events), 0}};
    const Status status = waiting_.poll(polled, monotonic_ns() + 50'000'000);
    if (status.code() != ErrorCode::kTimeout || !status.message().empty()) return status;
    return Status(ErrorCode::kTimeout,
                  fmt::format("exchange \"{}\": {} did not come in time", name_,
                              from < 0 ? "a rank" : cluster_.describe(from) + ", or a rank below it,"));
  }

  Cluster& cluster_;
  std::span<const int> ranks_;
  const std::string& name_;
  uint64_t channel_;
  Waiting waiting_;
  std::vector<FrameLink> children_;
  std::vector<std::string> values_;
};

}  // namespace

Result<std::vector<std::string>> Cluster::exchange(std::span<const int> ranks, const std::string& name,
                                                   std::string_view mine, int64_t deadline_ns,
                                                   const std::function<Status()>& interrupted) {
  return Exchange(*this, ranks, name, deadline_ns, interrupted).run(mine);
}

}  // namespace collective_ops
