#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/float_kernels.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/kernel_families.h"
#include "kernels/reduce_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace collective_ops {
namespace HWY_NAMESPACE {

template <template <class> class Op, typename T>
using OpOf = Op<hn::ScalableTag<T>>;

// Only what gradients use has the unrolled path of 2, 4 and 8 ranks.
ReduceKernel float32_kernel(ReduceOp op) {
  using Codec = PlainCodec<float>;
  switch (op) {
    case ReduceOp::kSum:
      return reduce_ranks<Codec, OpOf<Sum, float>>;
    case ReduceOp::kAvg:
      return reduce_ranks<Codec, OpOf<Average, float>>;
    case ReduceOp::kMin:
      return reduce_ranks<Codec, OpOf<Minimum, float>>;
    case ReduceOp::kMax:
      return reduce_ranks<Codec, OpOf<Maximum, float>>;
    case ReduceOp::kProd:
      return reduce<Codec, OpOf<Product, float>>;
    case ReduceOp::kPreMulSum:
      return reduce<Codec, OpOf<PreMultipliedSum, float>>;
    default:
      return nullptr;
  }
}

ReduceKernel float64_kernel(ReduceOp op) {
  using Codec = PlainCodec<double>;
  switch (op) {
    case ReduceOp::kSum:
      return reduce<Codec, OpOf<Sum, double>>;
    case ReduceOp::kAvg:
      return reduce<Codec, OpOf<Average, double>>;
    case ReduceOp::kMin:
      return reduce<Codec, OpOf<Minimum, double>>;
    case ReduceOp::kMax:
      return reduce<Codec, OpOf<Maximum, double>>;
    case ReduceOp::kProd:
      return reduce<Codec, OpOf<Product, double>>;
    case ReduceOp::kPreMulSum:
      return reduce<Codec, OpOf<PreMultipliedSum, double>>;
    default:
      return nullptr;
  }
}

// Real and imaginary parts are neighbouring elements, twice as many.
template <typename T, template <class> class Op>
void reduce_pairs(const ReduceArguments& arguments) {
  ReduceArguments pairs = arguments;
  pairs.count *= 2;
  reduce<PlainCodec<T>, OpOf<Op, T>>(pairs);
}

template <typename T>
ReduceKernel complex_kernel(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_pairs<T, Sum>;
    case ReduceOp::kAvg:
      return reduce_pairs<T, Average>;
    case ReduceOp::kProd:
      return reduce_pairs<T, ComplexProduct>;
    case ReduceOp::kPreMulSum:
      return reduce_pairs<T, PreMultipliedSum>;
    default:
      return nullptr;
  }
}

ReduceKernel float_kernel_here(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::kFloat32:
      return float32_kernel(op);
    case DataType::kFloat64:
      return float64_kernel(op);
    case DataType::kComplex64:
      return complex_kernel<float>(op);
    case DataType::kComplex128:
      return complex_kernel<double>(op);
    default:
      return nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace collective_ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace collective_ops {
HWY_EXPORT(float_kernel_here);
ReduceKernel float_kernel(DataType type, ReduceOp op) {
  return HWY_DYNAMIC_DISPATCH(float_kernel_here)(type, op);
}
}  // namespace collective_ops
#endif
