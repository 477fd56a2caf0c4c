#include "kernels/reduce.h"

#include "kernels/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/kernel_families.h"

HWY_BEFORE_NAMESPACE();
namespace collective_ops {
namespace HWY_NAMESPACE {

const char* kernel_target_here() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace collective_ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace collective_ops {

HWY_EXPORT(kernel_target_here);

const char* kernel_target() { return HWY_DYNAMIC_DISPATCH(kernel_target_here)(); }

ReduceKernel reduce_kernel(DataType type, ReduceOp op) {
  if (!is_reducible(type, op)) return nullptr;
  for (const auto family : {float_kernel, half_kernel, integer_kernel, scalar_kernel}) {
    if (const ReduceKernel kernel = family(type, op)) return kernel;
  }
  return nullptr;
}

namespace {

// Bits of the compiled instruction sets that the processor has. A lower bit is a better one.
// Asked once: hwy::SupportedTargets() also undoes whatever was chosen.
int64_t supported_bits() {
  static const int64_t bits = hwy::SupportedTargets() & (HWY_TARGETS);
  return bits;
}

}  // namespace

std::vector<std::string_view> supported_kernel_targets() {
  std::vector<std::string_view> names;
  for (int64_t bits = supported_bits(); bits != 0; bits &= bits - 1)
    names.push_back(hwy::TargetName(bits & -bits));
  return names;
}

bool force_kernel_target(std::string_view name) {
  const int64_t supported = supported_bits();
  if (name.empty()) {
    hwy::GetChosenTarget().Update(supported);
    return true;
  }
  for (int64_t bits = supported; bits != 0; bits &= bits - 1) {
    if (name != hwy::TargetName(bits & -bits)) continue;
    hwy::GetChosenTarget().Update(bits & -bits);
    return true;
  }
  return false;
}

}  // namespace collective_ops
#endif
