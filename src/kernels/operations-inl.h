// The reductions, on vectors: what is done with the first source, with each further one, and at the end.
// Included once per instruction set (no include guard but Highway's).
#if defined(COLLECTIVE_OPS_KERNELS_OPERATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COLLECTIVE_OPS_KERNELS_OPERATIONS_INL_H_
#undef COLLECTIVE_OPS_KERNELS_OPERATIONS_INL_H_
#else
#define COLLECTIVE_OPS_KERNELS_OPERATIONS_INL_H_
#endif

#include <bit>
#include <limits>

#include "hwy/highway.h"
#include "kernels/reduce.h"

HWY_BEFORE_NAMESPACE();
namespace collective_ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
struct Operation {
  using V = hn::Vec<D>;
  explicit Operation(const ReduceArguments&) {}
  V first(V value) const { return value; }
  V finish(V result) const { return result; }
};

template <class D>
struct Sum : Operation<D> {
  using typename Operation<D>::V;
  using Operation<D>::Operation;
  V combine(V result, V value, size_t) const { return hn::Add(result, value); }
};

template <class D>
struct Average : Sum<D> {
  using typename Operation<D>::V;
  using Lane = hn::TFromD<D>;
  explicit Average(const ReduceArguments& arguments)
      : Sum<D>(arguments),
        divisor(static_cast<Lane>(arguments.divisor)),
        reciprocal(Lane{1} / divisor),
        power_of_two(std::has_single_bit(static_cast<unsigned>(arguments.divisor))) {}

  // The reciprocal of a power of two is exact, so the product is the quotient, several times faster.
  V finish(V result) const {
    return power_of_two ? hn::Mul(result, hn::Set(D(), reciprocal)) : hn::Div(result, hn::Set(D(), divisor));
  }

  Lane divisor, reciprocal;
  bool power_of_two;
};

template <class D>
struct Product : Operation<D> {
  using typename Operation<D>::V;
  using Operation<D>::Operation;
  V combine(V result, V value, size_t) const { return hn::Mul(result, value); }
};

// Real and imaginary parts in neighbouring lanes.
template <class D>
struct ComplexProduct : Operation<D> {
  using typename Operation<D>::V;
  using Operation<D>::Operation;
  V combine(V result, V value, size_t) const {
    const V by_real = hn::Mul(hn::DupEven(result), value);
    const V by_imaginary = hn::Mul(hn::DupOdd(result), hn::Reverse2(D(), value));
    return hn::OddEven(hn::Add(by_real, by_imaginary), hn::Sub(by_real, by_imaginary));
  }
};

// A comparison with NaN is false, so a NaN in `value` is taken; one in `result` is kept explicitly.
template <class D>
struct Minimum : Operation<D> {
  using typename Operation<D>::V;
  using Operation<D>::Operation;
  V combine(V result, V value, size_t) const {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Lt(result, value), hn::IsNaN(result)), result, value);
    } else {
      return hn::Min(result, value);
    }
  }
};

template <class D>
struct Maximum : Operation<D> {
  using typename Operation<D>::V;
  using Operation<D>::Operation;
  V combine(V result, V value, size_t) const {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Gt(result, value), hn::IsNaN(result)), result, value);
    } else {
      return hn::Max(result, value);
    }
  }
};

template <class D>
struct PreMultipliedSum {
  using V = hn::Vec<D>;
  using Lane = hn::TFromD<D>;
  explicit PreMultipliedSum(const ReduceArguments& arguments) : factors(arguments.factors) {}
  V first(V value) const { return hn::Mul(value, factor(0)); }
  V combine(V result, V value, size_t source) const {
    return hn::Add(result, hn::Mul(value, factor(source)));
  }
  V finish(V result) const { return result; }

  // Any NaN becomes the plain one: the bfloat16 codec relies on NaNs whose lower bits are zero.
  V factor(size_t source) const {
    const double wide = factors[source];
    return hn::Set(D(), wide == wide ? static_cast<Lane>(wide) : std::numeric_limits<Lane>::quiet_NaN());
  }

  const double* factors;
};

template <class D>
struct BitAnd : Operation<D> {
  using typename Operation<D>::V;
  using Operation<D>::Operation;
  V combine(V result, V value, size_t) const { return hn::And(result, value); }
};

template <class D>
struct BitOr : Operation<D> {
  using typename Operation<D>::V;
  using Operation<D>::Operation;
  V combine(V result, V value, size_t) const { return hn::Or(result, value); }
};

template <class D>
struct BitXor : Operation<D> {
  using typename Operation<D>::V;
  using Operation<D>::Operation;
  V combine(V result, V value, size_t) const { return hn::Xor(result, value); }
};

}  // namespace HWY_NAMESPACE
}  // namespace collective_ops
HWY_AFTER_NAMESPACE();

#endif
