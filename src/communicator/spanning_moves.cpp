// Calls over several hosts that move blocks and reduce nothing. Long ones go straight from and into the
// callers' memory.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "communicator/call_counts.h"
#include "communicator/spanning_group.h"

namespace collective_ops {
namespace {

constexpr size_t kShortBytes = 64 << 10;
// Of broadcasts: while one piece goes round inside a host the next one comes in.
constexpr size_t kPieceBytes = 1 << 20;

}  // namespace

// Where the ranks of every host stand side by side; as in the callers' memory where `in_order`.
SpanningGroup::Regions SpanningGroup::regions_of(std::span<const size_t> counts) const {
  Regions regions;
  regions.counts.assign(counts.begin(), counts.end());
  regions.offsets.resize(counts.size());
  for (const auto& there : hosts_.ranks) {
    regions.host_begin.push_back(regions.total);
    for (const int rank : there) {
      regions.offsets[static_cast<size_t>(rank)] = regions.total;
      regions.total += counts[static_cast<size_t>(rank)];
    }
    regions.host_count.push_back(regions.total - regions.host_begin.back());
  }
  return regions;
}

std::vector<size_t> SpanningGroup::counts_of(const Call& call, std::span<const size_t> given) const {
  if (!given.empty()) return {given.begin(), given.end()};
  return std::vector<size_t>(static_cast<size_t>(world_size()), call.count);
}

std::vector<size_t> SpanningGroup::here(std::span<const size_t> of_ranks) const {
  std::vector<size_t> counts;
  for (const int rank : hosts_.here()) counts.push_back(of_ranks[static_cast<size_t>(rank)]);
  return counts;
}

// What column `index` has of a host's region, from its begin. Where each rank of the host drives, its block.
SpanningGroup::Block SpanningGroup::slice_of(const Regions& regions, size_t host, int index) const {
  const auto columns = static_cast<size_t>(hosts_.columns), at = static_cast<size_t>(index);
  const std::vector<int>& there = hosts_.ranks[host];
  if (at >= columns) return {regions.host_count[host], 0};
  if (there.size() == columns) {
    const auto rank = static_cast<size_t>(there[at]);
    return {regions.offsets[rank] - regions.host_begin[host], regions.counts[rank]};
  }
  const size_t slice = (regions.host_count[host] + columns - 1) / columns;
  const size_t begin = std::min(regions.host_count[host], at * slice);
  return {begin, std::min(regions.host_count[host], begin + slice) - begin};
}

std::vector<size_t> SpanningGroup::slices_here(const Regions& regions, size_t host) const {
  std::vector<size_t> counts;
  for (int index = 0; index < static_cast<int>(hosts_.here().size()); ++index)
    counts.push_back(slice_of(regions, host, index).count);
  return counts;
}

Status SpanningGroup::broadcast(const Call& call) {
  const size_t element = size_of(call.type);
  const auto root = static_cast<size_t>(call.root);
  const std::vector<int> drivers = drivers_for(call.root);
  const int driver = hosts_.index_of[root] % static_cast<int>(hosts_.here().size());
  const size_t piece = kPieceBytes / element;
  for (size_t at = 0; at < call.count; at += piece) {
    const size_t count = std::min(piece, call.count - at);
    std::byte* data = static_cast<std::byte*>(call.recv) + at * element;
    if (index() == driver) {
      Status status = across(call, Collective::kBroadcast, data, data, count, drivers, hosts_.host_of[root]);
      if (!status.ok()) return status;
    }
    if (alone()) continue;
    Status status = local({.collective = Collective::kBroadcast,
                           .send = data,
                           .recv = data,
                           .count = count,
                           .type = call.type,
                           .root = driver});
    if (!status.ok()) return status;
  }
  return {};
}

Status SpanningGroup::all_gather(const Call& call) {
  const std::vector<size_t> counts = counts_of(call, call.recv_counts);
  const Regions regions = regions_of(counts);
  const size_t element = size_of(call.type);
  auto* recv = static_cast<std::byte*>(call.recv);
  std::byte* base = hosts_.in_order ? recv : gathered_.get(std::max<size_t>(regions.total * element, 1));
  const bool is_short = regions.total * element <= kShortBytes || hosts_.columns == 1;
  Status status = is_short ? gather_short(call, regions, base) : gather_in_columns(call, regions, base);
  if (!status.ok() || hosts_.in_order) return status;
  size_t at = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    std::memcpy(recv + at * element, base + regions.offsets[rank] * element, counts[rank] * element);
    at += counts[rank];
  }
  return {};
}

Status SpanningGroup::gather_short(const Call& call, const Regions& regions, std::byte* base) {
  const size_t element = size_of(call.type);
  const auto own = static_cast<size_t>(hosts_.own), rank = static_cast<size_t>(rank_);
  std::byte* region = base + regions.host_begin[own] * element;
  if (alone()) {
    std::byte* place = base + regions.offsets[rank] * element;
    if (place != call.send) std::memmove(place, call.send, regions.counts[rank] * element);
  } else {
    const std::vector<size_t> counts = here(regions.counts);
    Status status = local({.collective = Collective::kGatherV,
                           .send = call.send,
                           .recv = region,
                           .count = regions.counts[rank],
                           .type = call.type,
                           .recv_counts = counts});
    if (!status.ok()) return status;
  }
  if (index() == 0) {
    std::vector<Block> blocks;
    for (size_t host = 0; host < regions.host_begin.size(); ++host)
      blocks.push_back({regions.host_begin[host], regions.host_count[host]});
    if (Status status = hand_round(call, blocks, base, 0); !status.ok()) return status;
  }
  if (alone()) return {};
  return local({.collective = Collective::kBroadcast,
                .send = base,
                .recv = base,
                .count = regions.total,
                .type = call.type});
}

// Each rank of a column gives the others its host's block, and gets theirs.
Status SpanningGroup::hand_round(const Call& call, std::span<const Block> blocks, std::byte* base,
                                 int driven) {
  const std::vector<int> ranks = column(driven);
  Status status = send_round(call, blocks, base, ranks);
  if (status.ok()) status = receive_round(call, blocks, base, ranks);
  return !status.ok() || links_.flush() ? status : links_.status();
}

Status SpanningGroup::send_round(const Call& call, std::span<const Block> blocks, const std::byte* base,
                                 std::span<const int> ranks) {
  const size_t element = size_of(call.type), hosts = ranks.size();
  const auto own = static_cast<size_t>(hosts_.own);
  for (size_t k = 1; k < hosts; ++k) {
    const int peer = ranks[(own + k) % hosts];
    if (!links_.send(peer, base + blocks[own].begin * element, blocks[own].count * element))
      return links_.status();
  }
  return {};
}

Status SpanningGroup::receive_round(const Call& call, std::span<const Block> blocks, std::byte* base,
                                    std::span<const int> ranks) {
  const size_t element = size_of(call.type), hosts = ranks.size();
  const auto own = static_cast<size_t>(hosts_.own);
  for (size_t k = 1; k < hosts; ++k) {
    const size_t host = (own + hosts - k) % hosts;
    if (!links_.receive(ranks[host], base + blocks[host].begin * element, blocks[host].count * element))
      return links_.status();
  }
  return {};
}

Status SpanningGroup::gather_in_columns(const Call& call, const Regions& regions, std::byte* base) {
  const size_t element = size_of(call.type), hosts = regions.host_begin.size();
  const auto own = static_cast<size_t>(hosts_.own);
  const std::vector<size_t> counts = here(regions.counts);
  Status status = local({.collective = Collective::kAllGatherV,
                         .send = call.send,
                         .recv = base + regions.host_begin[own] * element,
                         .type = call.type,
                         .recv_counts = counts});
  if (!status.ok()) return status;
  if (index() < hosts_.columns) {
    std::vector<Block> blocks;
    for (size_t host = 0; host < hosts; ++host) {
      const Block slice = slice_of(regions, host, index());
      blocks.push_back({regions.host_begin[host] + slice.begin, slice.count});
    }
    status = hand_round(call, blocks, base, index());
    if (!status.ok()) return status;
  }
  for (size_t host = 0; host < hosts; ++host) {
    if (host == own) continue;
    const std::vector<size_t> slices = slices_here(regions, host);
    std::byte* region = base + regions.host_begin[host] * element;
    status = local({.collective = Collective::kAllGatherV,
                    .send = region + slice_of(regions, host, index()).begin * element,
                    .recv = region,
                    .type = call.type,
                    .recv_counts = slices});
    if (!status.ok()) return status;
  }
  return {};
}

// Sends what it has for ranks of other hosts, exchanges with those of its own meanwhile, then receives.
Status SpanningGroup::exchange(const Call& call, Way way, const std::byte* send, std::span<const Block> to,
                               std::byte* recv, std::span<const Block> from) {
  const size_t element = size_of(call.type);
  const int ranks = world_size();
  const auto elsewhere = [&](int peer) { return hosts_.host_of[static_cast<size_t>(peer)] != hosts_.own; };
  for (int k = 1; k < ranks; ++k) {
    const int peer = (rank_ + k) % ranks;
    const bool sends = way == Way::kAllToAll || (way == Way::kToRoot ? peer : rank_) == call.root;
    if (!elsewhere(peer) || !sends) continue;
    const Block& block = to[static_cast<size_t>(peer)];
    if (!links_.send(peer, send + block.begin * element, block.count * element)) return links_.status();
  }
  const bool takes_part = way == Way::kAllToAll || !elsewhere(call.root);
  if (takes_part) {
    if (Status status = exchange_here(call, way, send, to, recv, from); !status.ok()) return status;
  }
  for (int k = 1; k < ranks; ++k) {
    const int peer = (rank_ - k + ranks) % ranks;
    const bool receives = way == Way::kAllToAll || (way == Way::kToRoot ? rank_ : peer) == call.root;
    if (!elsewhere(peer) || !receives) continue;
    const Block& block = from[static_cast<size_t>(peer)];
    if (!links_.receive(peer, recv + block.begin * element, block.count * element)) return links_.status();
  }
  return links_.flush() ? Status() : links_.status();
}

// Between the ranks of this host. Where others stand between them, blocks are brought together first.
Status SpanningGroup::exchange_here(const Call& call, Way way, const std::byte* send,
                                    std::span<const Block> to, std::byte* recv, std::span<const Block> from) {
  const size_t element = size_of(call.type);
  const auto me = static_cast<size_t>(rank_);
  const bool is_root = rank_ == call.root;
  if (alone()) {
    const std::byte* source = send + to[me].begin * element;
    std::byte* place = recv + from[me].begin * element;
    if (source != place && to[me].count > 0) std::memmove(place, source, to[me].count * element);
    return {};
  }
  // Of a gather the root alone has many blocks to receive, of a scatter to send.
  const bool many_to = way == Way::kAllToAll || (way == Way::kFromRoot && is_root);
  const bool many_from = way == Way::kAllToAll || (way == Way::kToRoot && is_root);
  const std::vector<int>& ranks = hosts_.here();
  const auto first = static_cast<size_t>(ranks[0]);
  const size_t mine = to[way == Way::kToRoot ? static_cast<size_t>(call.root) : me].count;
  const size_t expected = from[way == Way::kFromRoot ? static_cast<size_t>(call.root) : me].count;
  std::vector<size_t> send_counts, recv_counts;
  size_t sent = 0, received = 0;
  for (const int rank : ranks) {
    send_counts.push_back(to[static_cast<size_t>(rank)].count);
    recv_counts.push_back(from[static_cast<size_t>(rank)].count);
    sent += send_counts.back();
    received += recv_counts.back();
  }
  const std::byte* source = many_to ? send + to[first].begin * element : send;
  std::byte* place = many_from ? recv + from[first].begin * element : recv;
  if (many_to && !hosts_.in_order) {
    std::byte* packed = packed_.get(std::max<size_t>(sent * element, 1));
    source = packed;
    for (const int rank : ranks) {
      const Block& block = to[static_cast<size_t>(rank)];
      std::memcpy(packed, send + block.begin * element, block.count * element);
      packed += block.count * element;
    }
  }
  if (many_from && !hosts_.in_order) place = gathered_.get(std::max<size_t>(received * element, 1));
  Call part{.send = source, .recv = place, .type = call.type};
  part.root = hosts_.index_of[static_cast<size_t>(call.root)];
  if (many_to) part.send_counts = send_counts;
  if (many_from) part.recv_counts = recv_counts;
  part.collective = way == Way::kAllToAll ? Collective::kAllToAllV
                    : way == Way::kToRoot ? Collective::kGatherV
                                          : Collective::kScatterV;
  part.count = way == Way::kToRoot ? mine : expected;
  if (Status status = local(part); !status.ok()) return status;
  if (!many_from || hosts_.in_order) return {};
  for (const int rank : ranks) {
    const Block& block = from[static_cast<size_t>(rank)];
    std::memcpy(recv + block.begin * element, place, block.count * element);
    place += block.count * element;
  }
  return {};
}

Status SpanningGroup::gather(const Call& call) {
  std::vector<Block> to(static_cast<size_t>(world_size()), Block{0, call.count});
  const bool is_root = rank_ == call.root;
  const std::vector<Block> from = is_root ? blocks_of(counts_of(call, call.recv_counts)) : to;
  return exchange(call, Way::kToRoot, static_cast<const std::byte*>(call.send), to,
                  static_cast<std::byte*>(call.recv), from);
}

Status SpanningGroup::scatter(const Call& call) {
  std::vector<Block> from(static_cast<size_t>(world_size()), Block{0, call.count});
  const bool is_root = rank_ == call.root;
  const std::vector<Block> to = is_root ? blocks_of(counts_of(call, call.send_counts)) : from;
  return exchange(call, Way::kFromRoot, static_cast<const std::byte*>(call.send), to,
                  static_cast<std::byte*>(call.recv), from);
}

Status SpanningGroup::all_to_all(const Call& call) {
  return exchange(call, Way::kAllToAll, static_cast<const std::byte*>(call.send),
                  blocks_of(counts_of(call, call.send_counts)), static_cast<std::byte*>(call.recv),
                  blocks_of(counts_of(call, call.recv_counts)));
}

std::vector<SpanningGroup::Block> SpanningGroup::blocks_of(const std::vector<size_t>& counts) {
  std::vector<Block> blocks;
  size_t at = 0;
  for (const size_t count : counts) {
    blocks.push_back({at, count});
    at += count;
  }
  return blocks;
}

}  // namespace collective_ops
