// Reductions over several hosts. Of each host's ranks the sum is made inside it, in the order of ranks; the
// sums of the hosts are added in an order that depends on nothing but the plan, or where every rank's own
// input is needed (is_ordered), one rank has them all and adds them in the order of ranks, as on one host.
#include <algorithm>
#include <cstring>
#include <utility>

#include "communicator/call_counts.h"
#include "communicator/spanning_group.h"
#include "kernels/reduce.h"
#include "tuner/choose.h"

namespace collective_ops {
namespace {

// Up to so many bytes one rank of each host speaks for all of its host.
constexpr size_t kShortBytes = 64 << 10;
// What goes through partial results at a time, of each rank that drives: it stays in the cache, and the next
// piece's sum within the host is made while the sockets still carry this one.
constexpr size_t kPieceBytes = 4 << 20;
constexpr size_t kLineBytes = 64;

size_t rounded_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

// A sum in float16 may overflow where the average does not.
bool SpanningGroup::divides_first(const Call& call) {
  return call.op == ReduceOp::kAvg && call.type == DataType::kFloat16;
}

// Inside a host.
ReduceOp SpanningGroup::op_here(const Call& call) {
  return call.op == ReduceOp::kAvg && !divides_first(call) ? ReduceOp::kSum : call.op;
}

// Whether what goes between hosts is more than this rank's own input.
bool SpanningGroup::sums_here(const Call& call) const {
  return !hosts_.single || call.op == ReduceOp::kPreMulSum || divides_first(call);
}

// Of a sum that is complete.
void SpanningGroup::divide(const Call& call, void* data, size_t count) const {
  if (call.op != ReduceOp::kAvg || divides_first(call) || count == 0) return;
  const void* source = data;
  reduce_kernel(call.type, ReduceOp::kAvg)(
      {.destinations = {&data, 1}, .sources = {&source, 1}, .count = count, .divisor = world_size()});
}

Status SpanningGroup::all_reduce(const Call& call) {
  const size_t element = size_of(call.type);
  const bool is_long = call.count * element > kShortBytes;
  if (way_ == kPieces) return all_reduce_in_pieces(call);
  if (is_long && hosts_.columns > 1) return all_reduce_in_slices(call);
  const void* from = call.send;
  if (sums_here(call)) {
    Call part = call;
    part.collective = Collective::kReduce;
    part.op = op_here(call);
    part.root = 0;
    if (Status status = local(part); !status.ok()) return status;
    from = call.recv;
  }
  if (index() == 0) {
    const size_t piece = kPieceBytes / element;
    for (size_t at = 0; at < call.count; at += piece) {
      const size_t count = std::min(piece, call.count - at);
      std::byte* to = static_cast<std::byte*>(call.recv) + at * element;
      const std::byte* source = static_cast<const std::byte*>(from) + at * element;
      if (Status status = across(call, Collective::kAllReduce, source, to, count, column(0)); !status.ok())
        return status;
      divide(call, to, count);
    }
  }
  if (alone()) return {};
  return local({.collective = Collective::kBroadcast,
                .send = call.recv,
                .recv = call.recv,
                .count = call.count,
                .type = call.type});
}

// Rank i of every host drives slice i.
Status SpanningGroup::all_reduce_in_slices(const Call& call) {
  const size_t element = size_of(call.type), columns = static_cast<size_t>(hosts_.columns);
  const size_t line = kLineBytes / element;
  const auto* send = static_cast<const std::byte*>(call.send);
  auto* recv = static_cast<std::byte*>(call.recv);
  const size_t piece = kPieceBytes / element * columns;
  for (size_t at = 0; at < call.count; at += piece) {
    const size_t count = std::min(piece, call.count - at);
    const size_t slice = rounded_up((count + columns - 1) / columns, line);
    std::vector<size_t> counts(hosts_.here().size());
    size_t begin = 0;
    for (size_t i = 0; i < columns; ++i) {
      const size_t before = std::min(count, i * slice);
      counts[i] = std::min(count, before + slice) - before;
      if (static_cast<int>(i) < index()) begin += counts[i];
    }
    const size_t mine = counts[static_cast<size_t>(index())];
    std::byte* own = recv + (at + begin) * element;
    if (index() >= hosts_.columns) own = recv + (at + count) * element;
    Status status = local({.collective = Collective::kReduceScatterV,
                           .send = send + at * element,
                           .recv = own,
                           .type = call.type,
                           .op = op_here(call),
                           .factor = call.factor,
                           .send_counts = counts});
    if (status.ok() && mine > 0) {
      status = across(call, Collective::kAllReduce, own, own, mine, column(index()));
      if (status.ok()) divide(call, own, mine);
    }
    if (status.ok()) {
      status = local({.collective = Collective::kAllGatherV,
                      .send = own,
                      .recv = recv + at * element,
                      .type = call.type,
                      .recv_counts = counts});
    }
    if (!status.ok()) return status;
  }
  return {};
}

Status SpanningGroup::reduce(const Call& call) {
  const size_t element = size_of(call.type);
  const auto root = static_cast<size_t>(call.root);
  const int host = hosts_.host_of[root];
  // Of each host one rank drives: of the root's host the root itself.
  const int driver = hosts_.index_of[root] % static_cast<int>(hosts_.here().size());
  const std::vector<int> drivers = drivers_for(call.root);
  const size_t piece = kPieceBytes / element;
  for (size_t at = 0; at < call.count; at += piece) {
    const size_t count = std::min(piece, call.count - at);
    const std::byte* from = static_cast<const std::byte*>(call.send) + at * element;
    std::byte* to = rank_ == call.root ? static_cast<std::byte*>(call.recv) + at * element : nullptr;
    if (sums_here(call)) {
      std::byte* sum = index() != driver ? nullptr : to != nullptr ? to : partial_.get(count * element);
      Status status = local({.collective = Collective::kReduce,
                             .send = from,
                             .recv = sum,
                             .count = count,
                             .type = call.type,
                             .op = op_here(call),
                             .root = driver,
                             .factor = call.factor});
      if (!status.ok()) return status;
      from = sum;
    }
    if (index() != driver) continue;
    Status status = across(call, Collective::kReduce, from, to, count, drivers, host);
    if (!status.ok()) return status;
    if (rank_ == call.root) divide(call, to, count);
  }
  return {};
}

// Adds up the parts of all hosts, in their order: `partial` holds what this host has for each, by host as
// `parts` says; `to` gets the sum of this host's.
Status SpanningGroup::sum_of_hosts(const Call& call, std::span<const Block> parts, const std::byte* partial,
                                   int driven, std::byte* to) {
  const std::vector<int> ranks = column(driven);
  Status status = send_parts(call, parts, partial, ranks);
  if (status.ok()) status = add_parts(call, parts, partial, ranks, to);
  // What was sent may be overwritten from now on.
  return !status.ok() || links_.flush() ? status : links_.status();
}

Status SpanningGroup::send_parts(const Call& call, std::span<const Block> parts, const std::byte* partial,
                                 std::span<const int> ranks) {
  const size_t element = size_of(call.type), hosts = ranks.size();
  for (size_t k = 1; k < hosts; ++k) {
    const size_t host = (static_cast<size_t>(hosts_.own) + k) % hosts;
    if (!links_.send(ranks[host], partial + parts[host].begin * element, parts[host].count * element))
      return links_.status();
  }
  return {};
}

Status SpanningGroup::add_parts(const Call& call, std::span<const Block> parts, const std::byte* partial,
                                std::span<const int> ranks, std::byte* to) {
  const size_t element = size_of(call.type);
  const auto own = static_cast<size_t>(hosts_.own), hosts = ranks.size();
  const size_t count = parts[own].count, stride = rounded_up(count * element, kLineBytes);
  std::byte* received = received_.get(std::max(stride * hosts, kLineBytes));
  std::vector<const void*> sources(hosts);
  sources[own] = partial + parts[own].begin * element;
  for (size_t k = 1; k < hosts; ++k) {
    const size_t host = (own + hosts - k) % hosts;
    if (!links_.receive(ranks[host], received + host * stride, count * element)) return links_.status();
    sources[host] = received + host * stride;
  }
  if (count == 0) return {};
  const bool divides = call.op == ReduceOp::kAvg && !divides_first(call);
  const bool sums = call.op == ReduceOp::kPreMulSum || call.op == ReduceOp::kAvg;
  const ReduceOp op = divides ? ReduceOp::kAvg : sums ? ReduceOp::kSum : call.op;
  void* destination = to;
  reduce_kernel(call.type, op)(
      {.destinations = {&destination, 1}, .sources = sources, .count = count, .divisor = world_size()});
  return {};
}

Status SpanningGroup::reduce_scatter(const Call& call) {
  const std::vector<size_t> counts = counts_of(call, call.send_counts);
  const Regions regions = regions_of(counts);
  const size_t element = size_of(call.type);
  const std::byte* from = static_cast<const std::byte*>(call.send);
  if (!hosts_.in_order) {
    std::byte* sorted = ordered_.get(regions.total * element);
    size_t at = 0;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      std::memcpy(sorted + regions.offsets[rank] * element, from + at * element, counts[rank] * element);
      at += counts[rank];
    }
    from = sorted;
  }
  const bool is_short = regions.total * element <= kShortBytes || hosts_.columns == 1;
  return is_short ? reduce_scatter_short(call, regions, from)
                  : reduce_scatter_in_columns(call, regions, from);
}

Status SpanningGroup::reduce_scatter_short(const Call& call, const Regions& regions, const std::byte* from) {
  const size_t element = size_of(call.type);
  const auto own = static_cast<size_t>(hosts_.own);
  if (sums_here(call)) {
    std::byte* sum = index() == 0 ? partial_.get(regions.total * element) : nullptr;
    Status status = local({.collective = Collective::kReduce,
                           .send = from,
                           .recv = sum,
                           .count = regions.total,
                           .type = call.type,
                           .op = op_here(call),
                           .factor = call.factor});
    if (!status.ok()) return status;
    from = sum;
  }
  const std::vector<size_t> counts = here(regions.counts);
  // This host's results lie where they are sent from: in place of its own part of the sums.
  std::byte* results = nullptr;
  if (index() == 0) {
    std::vector<Block> parts;
    for (size_t host = 0; host < regions.host_begin.size(); ++host)
      parts.push_back({regions.host_begin[host], regions.host_count[host]});
    results = alone() ? static_cast<std::byte*>(call.recv)
                      : const_cast<std::byte*>(from) + regions.host_begin[own] * element;
    if (Status status = sum_of_hosts(call, parts, from, 0, results); !status.ok()) return status;
  }
  if (alone()) return {};
  return local({.collective = Collective::kScatterV,
                .send = results,
                .recv = call.recv,
                .count = regions.counts[static_cast<size_t>(rank_)],
                .type = call.type,
                .send_counts = counts});
}

Status SpanningGroup::reduce_scatter_in_columns(const Call& call, const Regions& regions,
                                                const std::byte* from) {
  const size_t element = size_of(call.type), hosts = regions.host_begin.size();
  const auto own = static_cast<size_t>(hosts_.own);
  // Of every host's region this rank gets one slice of the sum.
  std::vector<Block> parts(hosts);
  size_t total = 0;
  for (size_t host = 0; host < hosts; ++host) {
    parts[host] = {total, slice_of(regions, host, index()).count};
    total += parts[host].count;
  }
  std::byte* partial = partial_.get(std::max<size_t>(total * element, 1));
  for (size_t host = 0; host < hosts; ++host) {
    Status status = local({.collective = Collective::kReduceScatterV,
                           .send = from + regions.host_begin[host] * element,
                           .recv = partial + parts[host].begin * element,
                           .type = call.type,
                           .op = op_here(call),
                           .factor = call.factor,
                           .send_counts = slices_here(regions, host)});
    if (!status.ok()) return status;
  }
  const bool slices_are_blocks = hosts_.here().size() == static_cast<size_t>(hosts_.columns);
  std::byte* region =
      slices_are_blocks ? nullptr : gathered_.get(std::max<size_t>(regions.host_count[own] * element, 1));
  std::byte* to = slices_are_blocks ? static_cast<std::byte*>(call.recv)
                                    : region + slice_of(regions, own, index()).begin * element;
  if (index() < hosts_.columns) {
    if (Status status = sum_of_hosts(call, parts, partial, index(), to); !status.ok()) return status;
  }
  if (slices_are_blocks) return {};
  const std::vector<size_t> slices = slices_here(regions, own);
  Status status = local({.collective = Collective::kAllGatherV,
                         .send = to,
                         .recv = region,
                         .type = call.type,
                         .recv_counts = slices});
  if (!status.ok()) return status;
  const auto rank = static_cast<size_t>(rank_);
  std::memcpy(call.recv, region + (regions.offsets[rank] - regions.host_begin[own]) * element,
              regions.counts[rank] * element);
  return {};
}

}  // namespace collective_ops
