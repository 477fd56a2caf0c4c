// Element types, reductions and collectives: the vocabulary that every layer shares.
// Names are printed with name_of(); sizes are in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace collective_ops {

enum class DataType : uint8_t {
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kBool,        // one byte, 0 or 1
  kComplex64,   // two float32
  kComplex128,  // two float64
  kFloat8E4M3,  // moved, never reduced
  kFloat8E5M2,  // moved, never reduced
};
inline constexpr int kDataTypeCount = 17;

enum class ReduceOp : uint8_t {
  kSum,
  kAvg,  // the sum, then divided by the number of ranks; integers: 64-bit sum, truncated towards zero
  kProd,
  kMin,  // NaN of any rank carries on
  kMax,  // NaN of any rank carries on
  kBitAnd,
  kBitOr,
  kBitXor,
  kPreMulSum,  // sum of factor * element
};
inline constexpr int kReduceOpCount = 9;

enum class Collective : uint8_t {
  kBarrier,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kAllGatherV,
  kReduceScatterV,
  kGatherV,
  kScatterV,
  kAllToAllV,
  kSend,
  kRecv,
};
inline constexpr int kCollectiveCount = 16;

size_t size_of(DataType type);

// Names as users write them: "float32", "sum", "all_reduce".
std::string_view name_of(DataType type);
std::string_view name_of(ReduceOp op);
std::string_view name_of(Collective collective);

std::optional<DataType> data_type_from(std::string_view name);
std::optional<ReduceOp> reduce_op_from(std::string_view name);  // "avg" and "mean", "prod" and "product"
std::optional<Collective> collective_from(std::string_view name);

bool has_root(Collective collective);
// Whether elements are combined, so that the operation counts.
bool reduces(Collective collective);

// Whether elements of `type` can be combined by `op`.
bool is_reducible(DataType type, ReduceOp op);

}  // namespace collective_ops
