#include "communicator/call_counts.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include <fmt/format.h>

namespace collective_ops {
namespace {

constexpr size_t kMostBytes = size_t{1} << 47;  // of one rank's input or output
constexpr size_t kNamedPairs = 4;

// One rank's annex to its line.
struct Annex {
  double factor;
  uint64_t counts[];  // n elements to rank 0, 1, ...; then n expected from rank 0, 1, ...
};
static_assert(sizeof(Annex) + 2 * shm::kMaxRanks * sizeof(uint64_t) <= shm::kEagerBytes);

Annex& annex_of(const shm::GroupMemory& memory, int rank, uint64_t sequence) {
  return *reinterpret_cast<Annex*>(memory.eager(rank, sequence));
}

Status invalid(const Call& call, std::string_view what) {
  return {ErrorCode::kInvalidArgument, fmt::format("{}: {}", name_of(call.collective), what)};
}

// Which counts this rank has to give.
struct Wanted {
  bool send = false;
  bool recv = false;
};
Wanted wanted_counts(const Call& call, int rank) {
  switch (call.collective) {
    case Collective::kAllGatherV:
      return {false, true};
    case Collective::kReduceScatterV:
      return {true, false};
    case Collective::kGatherV:
      return {false, rank == call.root};
    case Collective::kScatterV:
      return {rank == call.root, false};
    case Collective::kAllToAllV:
      return {true, true};
    default:
      return {};
  }
}

Status check_counts(const Call& call, std::span<const size_t> counts, std::string_view name, int world_size) {
  if (counts.size() != static_cast<size_t>(world_size)) {
    return invalid(call, fmt::format("{} has {} entries; give one for each of the {} ranks", name,
                                     counts.size(), world_size));
  }
  size_t left = kMostBytes / size_of(call.type);
  for (size_t count : counts) {
    if (count > left) return invalid(call, fmt::format("{} add up to more than any memory", name));
    left -= count;
  }
  return {};
}

size_t sum(std::span<const size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}

}  // namespace

CallBytes bytes_of(const Call& call, int rank, int world_size) {
  const size_t element = size_of(call.type);
  const size_t own = call.count * element;
  const size_t all = own * static_cast<size_t>(world_size);
  const auto me = static_cast<size_t>(rank);
  const bool is_root = rank == call.root;
  switch (call.collective) {
    case Collective::kBarrier:
      return {};
    case Collective::kAllGather:
      return {own, all};
    case Collective::kReduceScatter:
      return {all, own};
    case Collective::kReduce:
      return {own, is_root ? own : 0};
    case Collective::kGather:
      return {own, is_root ? all : 0};
    case Collective::kScatter:
      return {is_root ? all : 0, own};
    case Collective::kAllToAll:
      return {all, all};
    case Collective::kAllGatherV:
      return {call.recv_counts[me] * element, sum(call.recv_counts) * element};
    case Collective::kReduceScatterV:
      return {sum(call.send_counts) * element, call.send_counts[me] * element};
    case Collective::kGatherV:
      return {own, is_root ? sum(call.recv_counts) * element : 0};
    case Collective::kScatterV:
      return {is_root ? sum(call.send_counts) * element : 0, own};
    case Collective::kAllToAllV:
      return {sum(call.send_counts) * element, sum(call.recv_counts) * element};
    default:
      return {own, own};
  }
}

CallBytes bytes_of(const Call& call, const std::vector<size_t>& counts, int rank, int world_size) {
  const size_t element = size_of(call.type);
  const auto me = static_cast<size_t>(rank);
  const auto n = static_cast<size_t>(world_size);
  const bool is_root = rank == call.root;
  switch (counts.empty() ? Collective::kBarrier : call.collective) {
    case Collective::kGatherV:
      return {counts[me] * element, is_root ? sum(counts) * element : 0};
    case Collective::kScatterV:
      return {is_root ? sum(counts) * element : 0, counts[me] * element};
    case Collective::kAllToAllV: {
      CallBytes bytes{sum({counts.data() + me * n, n}) * element, 0};
      for (size_t source = 0; source < n; ++source) bytes.output += counts[source * n + me] * element;
      return bytes;
    }
    default:
      return bytes_of(call, rank, world_size);
  }
}

Status check_call(const Call& call, int rank, int world_size) {
  if (reduces(call.collective) && !is_reducible(call.type, call.op)) {
    return {ErrorCode::kUnsupportedType,
            fmt::format("{} cannot reduce {} with {}: use another type or operation",
                        name_of(call.collective), name_of(call.type), name_of(call.op))};
  }
  if (call.root < 0 || call.root >= world_size) {
    return invalid(call,
                   fmt::format("root {} is not a rank of this group (0 to {})", call.root, world_size - 1));
  }
  if (call.count > kMostBytes / size_of(call.type) / static_cast<size_t>(world_size)) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("{} of {} elements is beyond any memory", name_of(call.collective), call.count)};
  }
  const Wanted wanted = wanted_counts(call, rank);
  if (wanted.send) {
    if (Status status = check_counts(call, call.send_counts, "send_counts", world_size); !status.ok())
      return status;
  }
  if (wanted.recv) {
    if (Status status = check_counts(call, call.recv_counts, "recv_counts", world_size); !status.ok())
      return status;
  }
  const CallBytes bytes = bytes_of(call, rank, world_size);
  if ((bytes.input > 0 && call.send == nullptr) || (bytes.output > 0 && call.recv == nullptr)) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("{} of {} elements got a null buffer", name_of(call.collective),
                        std::max(bytes.input, bytes.output) / size_of(call.type))};
  }
  const bool exchanges =
      call.collective == Collective::kAllToAll || call.collective == Collective::kAllToAllV;
  if (exchanges && call.send == call.recv && bytes.input > 0 && bytes.output > 0 && world_size > 1) {
    return invalid(call, "send and recv are the same memory, but blocks change places; give another recv");
  }
  return {};
}

bool exchanges_counts(Collective collective) {
  return collective == Collective::kGatherV || collective == Collective::kScatterV ||
         collective == Collective::kAllToAllV;
}

std::vector<size_t> known_counts(const Call& call) {
  const std::span<const size_t> counts = call.collective == Collective::kAllGatherV ? call.recv_counts
                                         : call.collective == Collective::kReduceScatterV
                                             ? call.send_counts
                                             : std::span<const size_t>();
  return {counts.begin(), counts.end()};
}

uint64_t announced_count(const Call& call) {
  if (exchanges_counts(call.collective)) return 0;
  const std::vector<size_t> counts = known_counts(call);
  if (counts.empty()) return call.count;
  uint64_t hash = 0;
  for (size_t count : counts) {
    hash = (hash ^ count) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

bool needs_annex(const Call& call) {
  return exchanges_counts(call.collective) || (reduces(call.collective) && call.op == ReduceOp::kPreMulSum);
}

void write_annex(const shm::GroupMemory& memory, int rank, uint64_t sequence, const Call& call) {
  Annex& annex = annex_of(memory, rank, sequence);
  annex.factor = call.factor;
  if (!exchanges_counts(call.collective)) return;
  const auto n = static_cast<size_t>(memory.world_size());
  const Wanted wanted = wanted_counts(call, rank);
  std::fill_n(annex.counts, 2 * n, uint64_t{0});
  // What is not given as a list is this rank's part, which the root receives or sends.
  if (wanted.send) std::copy_n(call.send_counts.begin(), n, annex.counts);
  if (wanted.recv) std::copy_n(call.recv_counts.begin(), n, annex.counts + n);
  const auto root = static_cast<size_t>(call.root);
  if (call.collective == Collective::kGatherV) annex.counts[root] = call.count;
  if (call.collective == Collective::kScatterV) annex.counts[n + root] = call.count;
}

Result<std::vector<size_t>> read_counts(const shm::GroupMemory& memory, const Members& members,
                                        uint64_t sequence, const Call& call) {
  const auto n = static_cast<size_t>(memory.world_size());
  const size_t element = size_of(call.type);
  std::vector<size_t> counts(n * n);
  std::string pairs;
  size_t different = 0;
  for (size_t source = 0; source < n; ++source) {
    const Annex& from = annex_of(memory, static_cast<int>(source), sequence);
    for (size_t destination = 0; destination < n; ++destination) {
      const Annex& to = annex_of(memory, static_cast<int>(destination), sequence);
      const uint64_t sent = from.counts[destination];
      const uint64_t expected = to.counts[n + source];
      counts[source * n + destination] = sent;
      if (sent == expected || ++different > kNamedPairs) continue;
      pairs +=
          fmt::format("{}rank {} sends {} bytes to rank {}, which expects {} bytes",
                      pairs.empty() ? "" : "; ", members.world_rank(static_cast<int>(source)), sent * element,
                      members.world_rank(static_cast<int>(destination)), expected * element);
    }
  }
  if (different > 0) {
    if (different > kNamedPairs) pairs += fmt::format("; and {} more pairs", different - kNamedPairs);
    return Status(ErrorCode::kMismatch,
                  fmt::format("{} of {} (call #{} of {}): {}. What a rank sends to another must be what "
                              "that one expects from it; compare the ranks' lists of counts",
                              name_of(call.collective), name_of(call.type), sequence, members.text(), pairs));
  }
  if (call.collective == Collective::kAllToAllV) return counts;
  std::vector<size_t> of_ranks(n);
  const auto root = static_cast<size_t>(call.root);
  for (size_t rank = 0; rank < n; ++rank) {
    of_ranks[rank] = counts[call.collective == Collective::kGatherV ? rank * n + root : root * n + rank];
  }
  return of_ranks;
}

double read_factor(const shm::GroupMemory& memory, int rank, uint64_t sequence) {
  return annex_of(memory, rank, sequence).factor;
}

}  // namespace collective_ops
