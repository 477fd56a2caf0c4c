// Integer reductions without a vector instruction of their own: loops over small blocks, which the compiler
// vectorises where it can. Not for floating point: this compiler may fuse a vectorised product and sum even
// under -ffp-contract=off.
#include <cstring>
#include <type_traits>

#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scalar_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/kernel_families.h"

HWY_BEFORE_NAMESPACE();
namespace collective_ops {
namespace HWY_NAMESPACE {

inline constexpr size_t kBlock = 64;  // elements whose intermediate results stay in the first-level cache

// T is the element, Wide the intermediate; Op has combine(wide, wide) and finish(wide, arguments).
template <typename T, typename Wide, class Op>
void reduce_blocks(const ReduceArguments& arguments) {
  if (arguments.sources.empty()) return;
  Wide result[kBlock];
  for (size_t offset = 0; offset < arguments.count; offset += kBlock) {
    const size_t length = HWY_MIN(kBlock, arguments.count - offset);
    // Through memcpy, since buffers may stand at any address.
    const auto read = [&](size_t source, size_t i) HWY_ATTR {
      T value;
      std::memcpy(&value, static_cast<const T*>(arguments.sources[source]) + offset + i, sizeof(T));
      return static_cast<Wide>(value);
    };
    for (size_t i = 0; i < length; ++i) result[i] = read(0, i);
    for (size_t s = 1; s < arguments.sources.size(); ++s) {
      for (size_t i = 0; i < length; ++i) result[i] = Op::combine(result[i], read(s, i));
    }
    T narrow[kBlock];
    for (size_t i = 0; i < length; ++i) narrow[i] = static_cast<T>(Op::finish(result[i], arguments));
    for (void* destination : arguments.destinations) {
      std::memcpy(static_cast<T*>(destination) + offset, narrow, length * sizeof(T));
    }
  }
}

struct WideSum {
  // Sums wrap like the processor's; signed overflow in C++ would be undefined.
  template <typename Wide>
  static HWY_INLINE Wide combine(Wide a, Wide b) {
    return static_cast<Wide>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
  template <typename Wide>
  static HWY_INLINE Wide finish(Wide sum, const ReduceArguments& arguments) {
    return sum / static_cast<Wide>(arguments.divisor);
  }
};

struct WrappingProduct {
  template <typename Wide>
  static HWY_INLINE Wide combine(Wide a, Wide b) {
    return a * b;
  }
  template <typename Wide>
  static HWY_INLINE Wide finish(Wide product, const ReduceArguments&) {
    return product;
  }
};

template <typename T>
ReduceKernel kernel_of(ReduceOp op) {
  using Sum = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  // At least int's width: narrower factors would be promoted to a signed int that can overflow.
  using Factor = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  if (op == ReduceOp::kAvg) return reduce_blocks<T, Sum, WideSum>;
  if (op == ReduceOp::kProd) return reduce_blocks<std::make_unsigned_t<T>, Factor, WrappingProduct>;
  return nullptr;
}

ReduceKernel scalar_kernel_here(DataType type, ReduceOp op) {
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
    default:
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace collective_ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace collective_ops {
HWY_EXPORT(scalar_kernel_here);
ReduceKernel scalar_kernel(DataType type, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(scalar_kernel_here)(type, op);
}
}  // namespace collective_ops
#endif
