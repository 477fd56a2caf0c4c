// Sums in the order of ranks over several hosts: the inputs of a slice move to the rank that owns it, which
// adds them as one host does. So the bits are the same for any number of hosts.
#include <algorithm>
#include <cstring>

#include "communicator/call_counts.h"
#include "communicator/spanning_group.h"
#include "kernels/reduce.h"

namespace collective_ops {
namespace {

// Every rank holds the inputs of all for its share of such a piece.
constexpr size_t kPieceBytes = 8 << 20;

}  // namespace

bool SpanningGroup::is_ordered(const Call& call) const {
  // A 64-bit sum for an average of integers has no room in partial results.
  return local_->forced().strict || (call.op == ReduceOp::kAvg && call.type <= DataType::kUInt64);
}

Status SpanningGroup::gather_factors(const Call& call) {
  factors_.clear();
  if (call.op != ReduceOp::kPreMulSum) return {};
  factors_.resize(static_cast<size_t>(world_size()));
  const double own = call.factor;
  return all_gather({.collective = Collective::kAllGather,
                     .send = &own,
                     .recv = factors_.data(),
                     .count = 1,
                     .type = DataType::kFloat64});
}

// Block r of `from` is reduced over all ranks into `to` of rank r.
Status SpanningGroup::sum_ordered(const Call& call, std::span<const Block> blocks, const std::byte* from,
                                  std::byte* to) {
  const size_t element = size_of(call.type), ranks = blocks.size();
  const size_t count = blocks[static_cast<size_t>(rank_)].count;
  std::vector<Block> inputs(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) inputs[rank] = {rank * count, count};
  std::byte* all = ordered_.get(std::max<size_t>(ranks * count * element, 1));
  if (Status status = exchange(call, Way::kAllToAll, from, blocks, all, inputs); !status.ok()) return status;
  if (count == 0) return {};
  std::vector<const void*> sources(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) sources[rank] = all + rank * count * element;
  void* destination = to;
  reduce_kernel(call.type, call.op)({.destinations = {&destination, 1},
                                     .sources = sources,
                                     .count = count,
                                     .divisor = world_size(),
                                     .factors = factors_.empty() ? nullptr : factors_.data()});
  return {};
}

Status SpanningGroup::in_ordered_pieces(const Call& call,
                                        const std::function<Status(const OrderedPiece&)>& then) {
  const size_t element = size_of(call.type), ranks = static_cast<size_t>(world_size());
  const size_t piece = kPieceBytes / element;
  for (size_t at = 0; at < call.count; at += piece) {
    const size_t count = std::min(piece, call.count - at);
    const size_t slice = (count + ranks - 1) / ranks;
    std::vector<Block> blocks(ranks);
    std::vector<size_t> counts(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const size_t begin = std::min(count, rank * slice);
      counts[rank] = std::min(count, begin + slice) - begin;
      blocks[rank] = {begin, counts[rank]};
    }
    const Block& mine = blocks[static_cast<size_t>(rank_)];
    std::byte* sum = partial_.get(std::max<size_t>(mine.count * element, 1));
    const auto* from = static_cast<const std::byte*>(call.send) + at * element;
    if (Status status = sum_ordered(call, blocks, from, sum); !status.ok()) return status;
    if (Status status = then({at, counts, sum}); !status.ok()) return status;
  }
  return {};
}

Status SpanningGroup::all_reduce_ordered(const Call& call) {
  if (Status status = gather_factors(call); !status.ok()) return status;
  return in_ordered_pieces(call, [&](const OrderedPiece& piece) {
    return all_gather({.collective = Collective::kAllGatherV,
                       .send = piece.sum,
                       .recv = static_cast<std::byte*>(call.recv) + piece.at * size_of(call.type),
                       .type = call.type,
                       .recv_counts = piece.counts});
  });
}

Status SpanningGroup::reduce_ordered(const Call& call) {
  if (Status status = gather_factors(call); !status.ok()) return status;
  return in_ordered_pieces(call, [&](const OrderedPiece& piece) {
    return gather({.collective = Collective::kGatherV,
                   .send = piece.sum,
                   .recv = static_cast<std::byte*>(call.recv) + piece.at * size_of(call.type),
                   .count = piece.counts[static_cast<size_t>(rank_)],
                   .type = call.type,
                   .root = call.root,
                   .recv_counts = piece.counts});
  });
}

Status SpanningGroup::reduce_scatter_ordered(const Call& call) {
  if (Status status = gather_factors(call); !status.ok()) return status;
  const std::vector<size_t> counts = counts_of(call, call.send_counts);
  std::vector<Block> blocks;
  size_t at = 0;
  for (const size_t count : counts) {
    blocks.push_back({at, count});
    at += count;
  }
  return sum_ordered(call, blocks, static_cast<const std::byte*>(call.send),
                     static_cast<std::byte*>(call.recv));
}

}  // namespace collective_ops
