#include <collective_ops/types.h>

#include <array>

namespace collective_ops {
namespace {

struct TypeInfo {
  std::string_view name;
  size_t size;
};
constexpr std::array<TypeInfo, kDataTypeCount> kTypes = {{
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"bool", 1},
    {"complex64", 8},
    {"complex128", 16},
    {"float8_e4m3", 1},
    {"float8_e5m2", 1},
}};
constexpr std::array<std::string_view, kReduceOpCount> kOps = {"sum",  "avg", "prod", "min",       "max",
                                                               "band", "bor", "bxor", "premul_sum"};
constexpr std::array<std::string_view, kCollectiveCount> kCollectives = {
    "barrier", "all_reduce", "all_gather",   "reduce_scatter",   "broadcast", "reduce",    "gather",
    "scatter", "all_to_all", "all_gather_v", "reduce_scatter_v", "gather_v",  "scatter_v", "all_to_all_v",
    "send",    "recv"};

template <typename Enum, size_t N>
std::optional<Enum> find(const std::array<std::string_view, N>& names, std::string_view name) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

size_t size_of(DataType type) { return kTypes[static_cast<size_t>(type)].size; }
std::string_view name_of(DataType type) {
  return static_cast<int>(type) < kDataTypeCount ? kTypes[static_cast<size_t>(type)].name : "no type";
}
std::string_view name_of(ReduceOp op) {
  return static_cast<int>(op) < kReduceOpCount ? kOps[static_cast<size_t>(op)] : "no operation";
}
std::string_view name_of(Collective collective) { return kCollectives[static_cast<size_t>(collective)]; }

std::optional<DataType> data_type_from(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].name == name) return static_cast<DataType>(i);
  }
  return std::nullopt;
}

std::optional<ReduceOp> reduce_op_from(std::string_view name) {
  if (name == "mean") return ReduceOp::kAvg;
  if (name == "product") return ReduceOp::kProd;
  return find<ReduceOp>(kOps, name);
}

std::optional<Collective> collective_from(std::string_view name) {
  return find<Collective>(kCollectives, name);
}

bool has_root(Collective collective) {
  switch (collective) {
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kGather:
    case Collective::kGatherV:
    case Collective::kScatter:
    case Collective::kScatterV:
      return true;
    default:
      return false;
  }
}

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kReduceScatterV || collective == Collective::kReduce;
}

bool is_reducible(DataType type, ReduceOp op) {
  const bool integer = type <= DataType::kUInt64;
  const bool floating = type >= DataType::kFloat16 && type <= DataType::kFloat64;
  const bool complex = type == DataType::kComplex64 || type == DataType::kComplex128;
  switch (op) {
    case ReduceOp::kSum:
      return integer || floating || complex || type == DataType::kBool;
    case ReduceOp::kAvg:
      return integer || floating || complex;
    case ReduceOp::kProd:
      return integer || floating || complex || type == DataType::kBool;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return integer || floating || type == DataType::kBool;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return integer || type == DataType::kBool;
    case ReduceOp::kPreMulSum:
      return floating || complex;
  }
  return false;
}

}  // namespace collective_ops
