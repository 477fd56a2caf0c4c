#include "rank_case.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace collective_ops::benchmark {
namespace {

constexpr size_t kAlignment = 64;

// The same values as in peers/mpi_collectives.c: small, so that every type holds their sums.
int64_t value(int rank, size_t index) { return static_cast<int64_t>(index % 7) + rank + 1; }

template <typename T>
void put(std::byte* data, size_t index, T value) {
  std::memcpy(data + index * sizeof(T), &value, sizeof(T));
}
template <typename T>
T get(const std::byte* data, size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

void store(std::byte* data, DataType type, size_t index, int64_t value) {
  const auto small = static_cast<float>(value);
  switch (type) {
    case DataType::kFloat32:
      return put(data, index, small);
    case DataType::kFloat64:
      return put(data, index, static_cast<double>(value));
    case DataType::kBFloat16:
      return put(data, index, static_cast<uint16_t>(std::bit_cast<uint32_t>(small) >> 16));
    case DataType::kInt32:
      return put(data, index, static_cast<int32_t>(value));
    default:
      return put(data, index, value);
  }
}

int64_t load(const std::byte* data, DataType type, size_t index) {
  switch (type) {
    case DataType::kFloat32:
      return static_cast<int64_t>(get<float>(data, index));
    case DataType::kFloat64:
      return static_cast<int64_t>(get<double>(data, index));
    case DataType::kBFloat16:
      return static_cast<int64_t>(std::bit_cast<float>(uint32_t{get<uint16_t>(data, index)} << 16));
    case DataType::kInt32:
      return get<int32_t>(data, index);
    default:
      return get<int64_t>(data, index);
  }
}

}  // namespace

Status RankCase::Buffer::take(const std::string& memory, size_t wanted) {
  const size_t count = std::max(wanted, kAlignment);  // a barrier has no bytes
  size = wanted;
  if (memory == "shared") {
    auto buffer = Communicator::allocate(count);
    if (!buffer.ok()) return buffer.status();
    shared = *buffer;
    data = static_cast<std::byte*>(shared->data());
  } else {
    bytes.resize(count + kAlignment);
    data = bytes.data() + (kAlignment - reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment);
  }
  std::memset(data, 0, count);
  return {};
}

bool RankCase::holds_whole() const {
  return rank_ == 0 || (call_.collective != Collective::kGather && call_.collective != Collective::kScatter);
}

Result<RankCase> RankCase::make(const CaseSpec& spec, int rank, int ranks) {
  const auto collective = collective_from(spec.collective);
  const auto type = data_type_from(spec.type);
  const auto op = reduce_op_from(spec.op);
  if (!collective || !type || !op || *collective > Collective::kAllToAll ||
      (spec.memory != "shared" && spec.memory != "private")) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("a benchmark has no {} of {} with {} in {} memory; see --help", spec.collective,
                              spec.type, spec.op, spec.memory));
  }
  RankCase made;
  made.rank_ = rank;
  made.ranks_ = ranks;
  made.total_ = spec.bytes / size_of(*type);
  made.part_ = made.total_ / static_cast<size_t>(ranks);
  Call& call = made.call_;
  call.collective = *collective;
  call.type = *type;
  call.op = *op;
  const size_t held = (made.holds_whole() ? made.total_ : made.part_) * size_of(*type);
  if (Status status = made.data_.take(spec.memory, held); !status.ok()) return status;
  const size_t own = made.part_ * size_of(*type) * static_cast<size_t>(rank);
  call.send = call.recv = made.data_.data;
  call.count = made.part_;
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      call.count = made.total_;
      break;
    case Collective::kAllGather:
      call.send = made.data_.data + own;
      break;
    case Collective::kReduceScatter:
      call.recv = made.data_.data + own;
      break;
    case Collective::kAllToAll:
      if (Status status = made.other_.take(spec.memory, held); !status.ok()) return status;
      call.recv = made.other_.data;
      break;
    case Collective::kBarrier:
      call = {};
      break;
    default:
      break;
  }
  return made;
}

int64_t RankCase::before(size_t index) const {
  const int owner = part_ == 0 ? 0 : static_cast<int>(index / part_);
  const size_t within = part_ == 0 ? 0 : index % part_;
  switch (call_.collective) {
    case Collective::kAllGather:
      return owner == rank_ ? value(rank_, within) : 0;
    case Collective::kGather:
      return owner == 0 ? value(rank_, within) : 0;
    case Collective::kScatter:
      return rank_ == 0 ? value(owner, within) : 0;
    case Collective::kBroadcast:
      return rank_ == 0 ? value(0, index) : 0;
    default:
      return value(rank_, index);
  }
}

int64_t RankCase::after(size_t index) const {
  const auto sum = [this](size_t at) {
    return ranks_ * static_cast<int64_t>(at % 7 + 1) + ranks_ * (ranks_ - 1) / 2;
  };
  const size_t own = static_cast<size_t>(rank_) * part_;
  switch (call_.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
      return sum(index);
    case Collective::kReduceScatter:
      return sum(own + index);
    case Collective::kBroadcast:
      return value(0, index);
    case Collective::kScatter:
      return value(rank_, index);
    case Collective::kAllToAll:
      return value(static_cast<int>(index / part_), own + index % part_);
    default:
      return value(static_cast<int>(index / part_), index % part_);
  }
}

void RankCase::fill() {
  const size_t count = call_.collective == Collective::kBarrier ? 0 : data_.size / size_of(call_.type);
  for (size_t i = 0; i < count; ++i) store(data_.data, call_.type, i, before(i));
}

size_t RankCase::wrong() const {
  const Collective collective = call_.collective;
  const bool on_root = collective == Collective::kReduce || collective == Collective::kGather;
  if (collective == Collective::kBarrier || (on_root && rank_ != 0)) return 0;
  const bool one_part = collective == Collective::kReduceScatter || collective == Collective::kScatter;
  const auto* result = static_cast<const std::byte*>(call_.recv);
  size_t count = 0;
  for (size_t i = 0; i < (one_part ? part_ : total_); ++i) count += load(result, call_.type, i) != after(i);
  return count;
}

void RankCase::zero() { std::memset(data_.data, 0, data_.size); }

}  // namespace collective_ops::benchmark
