#include "rank_case.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "kernels/convert.h"

namespace collective_ops::perf {
namespace {

constexpr size_t kAlignment = 64;

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

// The values are small integers, so that signed and unsigned types of a size hold the same bits.
void store(std::byte* data, DataType type, size_t index, int64_t value) {
  switch (type) {
    case DataType::kFloat32:
      return put(data, index, static_cast<float>(value));
    case DataType::kFloat64:
      return put(data, index, static_cast<double>(value));
    case DataType::kBFloat16:
      return put(data, index, bfloat16_from_float(static_cast<float>(value)));
    case DataType::kFloat16:
      return put(data, index, float16_from_float(static_cast<float>(value)));
    case DataType::kInt8:
    case DataType::kUInt8:
      return put(data, index, static_cast<uint8_t>(value));
    case DataType::kInt16:
    case DataType::kUInt16:
      return put(data, index, static_cast<uint16_t>(value));
    case DataType::kInt32:
    case DataType::kUInt32:
      return put(data, index, static_cast<uint32_t>(value));
    default:
      return put(data, index, value);
  }
}

double load(const std::byte* data, DataType type, size_t index) {
  switch (type) {
    case DataType::kFloat32:
      return get<float>(data, index);
    case DataType::kFloat64:
      return get<double>(data, index);
    case DataType::kBFloat16:
      return float_from_bfloat16(get<uint16_t>(data, index));
    case DataType::kFloat16:
      return float_from_float16(get<uint16_t>(data, index));
    case DataType::kInt8:
    case DataType::kUInt8:
      return get<uint8_t>(data, index);
    case DataType::kInt16:
    case DataType::kUInt16:
      return get<uint16_t>(data, index);
    case DataType::kInt32:
    case DataType::kUInt32:
      return get<uint32_t>(data, index);
    default:
      return static_cast<double>(get<int64_t>(data, index));
  }
}

// Up to which every integer is exact.
int64_t exact_limit(DataType type) {
  switch (type) {
    case DataType::kInt8:
      return 127;
    case DataType::kUInt8:
      return 255;
    case DataType::kBFloat16:
      return 256;
    case DataType::kFloat16:
      return 2048;
    case DataType::kInt16:
      return 32767;
    case DataType::kUInt16:
      return 65535;
    default:
      return int64_t{1} << 24;
  }
}

// Of these the sums stay smaller, so that they are exact with many ranks too.
bool is_narrow(DataType type) { return exact_limit(type) <= 2048; }

bool is_number(DataType type) { return type <= DataType::kFloat64; }

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

size_t RankCase::input_count() const {
  switch (call_.collective) {
    case Collective::kBarrier:
      return 0;
    case Collective::kAllGather:
    case Collective::kGather:
      return part_;
    case Collective::kBroadcast:
    case Collective::kScatter:
      return is_root() ? total_ : 0;
    default:
      return total_;
  }
}

size_t RankCase::output_count() const {
  switch (call_.collective) {
    case Collective::kBarrier:
      return 0;
    case Collective::kReduce:
    case Collective::kGather:
      return is_root() ? total_ : 0;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      return part_;
    default:
      return total_;
  }
}

// What is sent and what comes lie in one buffer, at the places where the collectives allow it.
Status RankCase::take_in_place(const std::string& memory) {
  const size_t item = size_of(call_.type);
  if (Status status = data_.take(memory, std::max(input_count(), output_count()) * item); !status.ok()) {
    return status;
  }
  call_.send = call_.recv = data_.data;
  std::byte* own = data_.data + part_ * item * static_cast<size_t>(rank_);
  const Collective collective = call_.collective;
  if (collective == Collective::kAllGather || (collective == Collective::kGather && is_root())) {
    call_.send = own;
  }
  if (collective == Collective::kReduceScatter || (collective == Collective::kScatter && is_root())) {
    call_.recv = own;
  }
  return {};
}

Status RankCase::take_apart(const std::string& memory) {
  const size_t item = size_of(call_.type);
  if (Status status = data_.take(memory, input_count() * item); !status.ok()) return status;
  if (Status status = other_.take(memory, output_count() * item); !status.ok()) return status;
  call_.send = data_.data;
  call_.recv = other_.data;
  return {};
}

Result<RankCase> RankCase::make(const CaseSpec& spec, int rank, int ranks) {
  const auto collective = collective_from(spec.collective);
  const auto type = data_type_from(spec.type);
  const auto op = reduce_op_from(spec.op);
  if (!collective || !type || !op || *collective > Collective::kAllToAll ||
      (spec.memory != "shared" && spec.memory != "private")) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("there is no measurement of {} of {} with {} in {} memory; see --help",
                              spec.collective, spec.type, spec.op, spec.memory));
  }
  if (spec.root < 0 || spec.root >= ranks) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("root {} is none of the ranks 0 to {}", spec.root, ranks - 1));
  }
  RankCase made;
  made.rank_ = rank;
  made.ranks_ = ranks;
  made.total_ = spec.bytes / size_of(*type);
  made.part_ = made.total_ / static_cast<size_t>(ranks);
  Call& call = made.call_;
  call.collective = *collective;
  if (*collective == Collective::kBarrier) return made;
  call.type = *type;
  call.op = *op;
  call.root = spec.root;
  const bool whole = *collective == Collective::kAllReduce || *collective == Collective::kReduce ||
                     *collective == Collective::kBroadcast;
  if (!whole) made.total_ = made.part_ * static_cast<size_t>(ranks);
  call.count = whole ? made.total_ : made.part_;
  const bool in_place =
      *collective == Collective::kBroadcast || (spec.in_place && *collective != Collective::kAllToAll);
  Status status = in_place ? made.take_in_place(spec.memory) : made.take_apart(spec.memory);
  if (!status.ok()) return status;
  return made;
}

bool RankCase::checkable() const {
  if (call_.collective == Collective::kBarrier) return false;
  int64_t greatest = 7 + std::min(ranks_, 100);
  if (reduces(call_.collective)) {
    switch (call_.op) {
      case ReduceOp::kSum:
        greatest = is_narrow(call_.type) ? 2 * ranks_ : 7 * ranks_ + int64_t{ranks_} * (ranks_ - 1) / 2;
        break;
      case ReduceOp::kProd:
        greatest = 2;
        break;
      case ReduceOp::kMax:
      case ReduceOp::kMin:
        greatest = ranks_;
        break;
      default:
        return false;
    }
  }
  return is_number(call_.type) && greatest <= exact_limit(call_.type);
}

// One rank left out, or counted twice, changes the result of some elements: the values depend on both. Sums
// use the same values as benchmarks/peers/mpi_collectives.c.
int64_t RankCase::value(int rank, size_t index) const {
  const auto at = static_cast<int64_t>(index);
  if (!reduces(call_.collective)) return at % 7 + rank % 100 + 1;
  if (call_.op == ReduceOp::kProd) return at % ranks_ == rank ? 2 : 1;
  if (call_.op == ReduceOp::kMax || call_.op == ReduceOp::kMin) return (at + rank) % ranks_ + 1;
  return is_narrow(call_.type) ? 1 + (at + rank) % 2 : at % 7 + rank + 1;
}

int64_t RankCase::combined(size_t index) const {
  const auto at = static_cast<int64_t>(index);
  const int64_t n = ranks_;
  if (call_.op == ReduceOp::kProd) return 2;
  if (call_.op == ReduceOp::kMax) return n;
  if (call_.op == ReduceOp::kMin) return 1;
  return is_narrow(call_.type) ? n + (n + at % 2) / 2 : n * (at % 7 + 1) + n * (n - 1) / 2;
}

int64_t RankCase::before(size_t index) const {
  if (call_.collective != Collective::kScatter) return value(rank_, index);
  return value(static_cast<int>(index / part_), index % part_);
}

int64_t RankCase::after(size_t index) const {
  const size_t own = static_cast<size_t>(rank_) * part_;
  switch (call_.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
      return combined(index);
    case Collective::kReduceScatter:
      return combined(own + index);
    case Collective::kBroadcast:
      return value(call_.root, index);
    case Collective::kScatter:
      return value(rank_, index);
    case Collective::kAllToAll:
      return value(static_cast<int>(index / part_), own + index % part_);
    default:
      return value(static_cast<int>(index / part_), index % part_);
  }
}

void RankCase::fill() {
  zero();
  // The input lies in data_, in place or not.
  std::byte* send = data_.data + (static_cast<const std::byte*>(call_.send) - data_.data);
  for (size_t i = 0; i < input_count(); ++i) store(send, call_.type, i, before(i));
}

size_t RankCase::wrong() const {
  const auto* result = static_cast<const std::byte*>(call_.recv);
  size_t count = 0;
  for (size_t i = 0; i < output_count(); ++i) {
    count += load(result, call_.type, i) != static_cast<double>(after(i));
  }
  return count;
}

void RankCase::zero() {
  if (data_.size > 0) std::memset(data_.data, 0, data_.size);
  if (other_.size > 0) std::memset(other_.data, 0, other_.size);
}

}  // namespace collective_ops::perf
