#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/half_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/kernel_families.h"
#include "kernels/reduce_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace collective_ops {
namespace HWY_NAMESPACE {

template <class Codec>
ReduceKernel half_kernel_of(ReduceOp op) {
  using D = typename Codec::D;
  switch (op) {
    case ReduceOp::kSum:
      return reduce_ranks<Codec, Sum<D>>;
    case ReduceOp::kAvg:
      return reduce_ranks<Codec, Average<D>>;
    case ReduceOp::kMin:
      return reduce_ranks<Codec, Minimum<D>>;
    case ReduceOp::kMax:
      return reduce_ranks<Codec, Maximum<D>>;
    case ReduceOp::kProd:
      return reduce<Codec, Product<D>>;
    case ReduceOp::kPreMulSum:
      return reduce<Codec, PreMultipliedSum<D>>;
    default:
      return nullptr;
  }
}

ReduceKernel half_kernel_here(DataType type, ReduceOp op) {
  if (type == DataType::kFloat16) return half_kernel_of<Float16Codec>(op);
  if (type == DataType::kBFloat16) return half_kernel_of<BFloat16Codec>(op);
  return nullptr;
}

}  // namespace HWY_NAMESPACE
}  // namespace collective_ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace collective_ops {
HWY_EXPORT(half_kernel_here);
ReduceKernel half_kernel(DataType type, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(half_kernel_here)(type, op);
}
}  // namespace collective_ops
#endif
