#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/integer_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/kernel_families.h"
#include "kernels/reduce_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace collective_ops {
namespace HWY_NAMESPACE {

template <template <class> class Op, typename T>
void reduce_integers(const ReduceArguments& arguments) {
  reduce<PlainCodec<T>, Op<hn::ScalableTag<T>>>(arguments);
}

// Bits do not care for the width of an element: one kernel of bytes serves all.
template <template <class> class Op, size_t kWidth>
void reduce_bits(const ReduceArguments& arguments) {
  ReduceArguments bytes = arguments;
  bytes.count *= kWidth;
  reduce_integers<Op, uint8_t>(bytes);
}

// The sum wraps, so signed and unsigned share one.
template <typename T>
ReduceKernel kernel_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_integers<Sum, hwy::MakeUnsigned<T>>;
    case ReduceOp::kMin:
      return reduce_integers<Minimum, T>;
    case ReduceOp::kMax:
      return reduce_integers<Maximum, T>;
    case ReduceOp::kBitAnd:
      return reduce_bits<BitAnd, sizeof(T)>;
    case ReduceOp::kBitOr:
      return reduce_bits<BitOr, sizeof(T)>;
    case ReduceOp::kBitXor:
      return reduce_bits<BitXor, sizeof(T)>;
    default:
      return nullptr;
  }
}

ReduceKernel bool_kernel(ReduceOp op) {
  using D = BoolCodec::D;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
      return reduce<BoolCodec, BitOr<D>>;
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      return reduce<BoolCodec, BitAnd<D>>;
    case ReduceOp::kBitXor:
      return reduce<BoolCodec, BitXor<D>>;
    default:
      return nullptr;
  }
}

ReduceKernel integer_kernel_here(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kInt8:
      return kernel_of<int8_t>(op);
    case DataType::kInt16:
      return kernel_of<int16_t>(op);
    case DataType::kInt32:
      return kernel_of<int32_t>(op);
    case DataType::kInt64:
      return kernel_of<int64_t>(op);
    case DataType::kUInt8:
      return kernel_of<uint8_t>(op);
    case DataType::kUInt16:
      return kernel_of<uint16_t>(op);
    case DataType::kUInt32:
      return kernel_of<uint32_t>(op);
    case DataType::kUInt64:
      return kernel_of<uint64_t>(op);
    case DataType::kBool:
      return bool_kernel(op);
    default:
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace collective_ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace collective_ops {
HWY_EXPORT(integer_kernel_here);
ReduceKernel integer_kernel(DataType type, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(integer_kernel_here)(type, op);
}
}  // namespace collective_ops
#endif
