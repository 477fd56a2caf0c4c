// Long all_reduces over not too many hosts, in pieces that overlap: while the sockets carry one piece, the
// sum of the next is made inside the host, and the one before is handed round there. Rank i of each host
// drives slice i of a piece; host h adds up part h of that slice, in the order of hosts, and gives the sum to
// the others. So each rank sends 2 (H-1)/H of its slices in two messages to each other host.
//
//   turn t: sum inside (t), send parts (t), add up and send the sum (t - 1), receive sums and share (t - 2)
//
// All ranks take the same turns, so messages between two of them are asked for in the order of sending.
#include <algorithm>
#include <cstring>

#include "communicator/spanning_group.h"

namespace collective_ops {
namespace {

// Of one slice: it stays in the cache while it is summed up, and fills what the sockets hold.
constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kLineBytes = 64;

size_t rounded_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

SpanningGroup::Piece SpanningGroup::piece_of(const Call& call, size_t begin, size_t count) const {
  const size_t line = kLineBytes / size_of(call.type), columns = static_cast<size_t>(hosts_.columns);
  const auto me = static_cast<size_t>(index()), hosts = static_cast<size_t>(hosts_.size());
  Piece piece{.begin = begin, .slice = begin + count};
  piece.counts.resize(hosts_.here().size());
  const size_t slice = rounded_up((count + columns - 1) / columns, line);
  for (size_t i = 0; i < columns; ++i) {
    const size_t before = std::min(count, i * slice);
    piece.counts[i] = std::min(count, before + slice) - before;
    if (i == me) piece.slice = begin + before;
  }
  const size_t mine = piece.counts[me], part = rounded_up((mine + hosts - 1) / hosts, line);
  for (size_t host = 0; host < hosts; ++host) {
    const size_t before = std::min(mine, host * part);
    piece.parts.push_back({piece.slice + before, std::min(mine, before + part) - before});
  }
  return piece;
}

Status SpanningGroup::all_reduce_in_pieces(const Call& call) {
  const size_t step = kPieceBytes / size_of(call.type) * static_cast<size_t>(hosts_.columns);
  std::vector<Piece> pieces;
  for (size_t at = 0; at < call.count; at += step)
    pieces.push_back(piece_of(call, at, std::min(step, call.count - at)));
  auto* recv = static_cast<std::byte*>(call.recv);
  const std::vector<int> ranks = index() < hosts_.columns ? column(index()) : std::vector<int>();
  Status status;
  for (size_t turn = 0; turn < pieces.size() + 2 && status.ok(); ++turn) {
    if (turn < pieces.size()) {
      status = sum_piece_here(call, pieces[turn]);
      if (status.ok() && !ranks.empty()) status = send_parts(call, pieces[turn].parts, recv, ranks);
    }
    if (status.ok() && turn >= 1 && turn - 1 < pieces.size() && !ranks.empty()) {
      const Piece& piece = pieces[turn - 1];
      const Block& own = piece.parts[static_cast<size_t>(hosts_.own)];
      status = add_parts(call, piece.parts, recv, ranks, recv + own.begin * size_of(call.type));
      if (status.ok()) status = send_round(call, piece.parts, recv, ranks);
    }
    if (status.ok() && turn >= 2) {
      const Piece& piece = pieces[turn - 2];
      if (!ranks.empty()) status = receive_round(call, piece.parts, recv, ranks);
      if (status.ok() && !alone()) status = share_piece_here(call, piece);
    }
  }
  return status;
}

Status SpanningGroup::sum_piece_here(const Call& call, const Piece& piece) {
  const size_t element = size_of(call.type);
  const std::byte* from = static_cast<const std::byte*>(call.send) + piece.begin * element;
  std::byte* to = static_cast<std::byte*>(call.recv) + piece.slice * element;
  if (sums_here(call)) {
    return local({.collective = Collective::kReduceScatterV,
                  .send = from,
                  .recv = to,
                  .type = call.type,
                  .op = op_here(call),
                  .factor = call.factor,
                  .send_counts = piece.counts});
  }
  if (from != to) std::memcpy(to, from, piece.counts[0] * element);
  return {};
}

Status SpanningGroup::share_piece_here(const Call& call, const Piece& piece) {
  auto* recv = static_cast<std::byte*>(call.recv);
  return local({.collective = Collective::kAllGatherV,
                .send = recv + piece.slice * size_of(call.type),
                .recv = recv + piece.begin * size_of(call.type),
                .type = call.type,
                .recv_counts = piece.counts});
}

}  // namespace collective_ops
