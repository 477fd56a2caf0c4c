#include "torch/operand.h"

#include <cstring>
#include <string>

#include <ATen/MemoryOverlap.h>

namespace collective_ops::pytorch {
namespace {

std::optional<DataType> known_type(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return DataType::kInt8;
    case at::kShort:
      return DataType::kInt16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    case at::kByte:
      return DataType::kUInt8;
    case at::kUInt16:
      return DataType::kUInt16;
    case at::kUInt32:
      return DataType::kUInt32;
    case at::kUInt64:
      return DataType::kUInt64;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kBool:
      return DataType::kBool;
    case at::kComplexFloat:
      return DataType::kComplex64;
    case at::kComplexDouble:
      return DataType::kComplex128;
    case at::kFloat8_e4m3fn:
      return DataType::kFloat8E4M3;
    case at::kFloat8_e5m2:
      return DataType::kFloat8E5M2;
    default:
      return std::nullopt;
  }
}

const char* torch_name(ReduceOp op) {
  static constexpr const char* kNames[kReduceOpCount] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                                         "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return kNames[static_cast<size_t>(op)];
}

// Row-major, no gaps, and its bits are its values.
bool plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

ElementType moved_type(const at::Tensor& tensor) {
  if (const auto type = known_type(tensor.scalar_type())) return {*type, 1};
  return {DataType::kUInt8, static_cast<size_t>(tensor.element_size())};
}

ElementType reduced_type(const at::Tensor& tensor, ReduceOp op, const char* call) {
  const auto type = known_type(tensor.scalar_type());
  TORCH_CHECK_TYPE(type && is_reducible(*type, op), call, ": ", torch_name(op), " of tensors of ",
                   tensor.scalar_type(), " is not defined; convert them first");
  return {*type, 1};
}

Reduction reduction_of(const c10d::ReduceOp& op, const char* call) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {ReduceOp::kSum};
    case c10d::ReduceOp::AVG:
      return {ReduceOp::kAvg};
    case c10d::ReduceOp::PRODUCT:
      return {ReduceOp::kProd};
    case c10d::ReduceOp::MIN:
      return {ReduceOp::kMin};
    case c10d::ReduceOp::MAX:
      return {ReduceOp::kMax};
    case c10d::ReduceOp::BAND:
      return {ReduceOp::kBitAnd};
    case c10d::ReduceOp::BOR:
      return {ReduceOp::kBitOr};
    case c10d::ReduceOp::BXOR:
      return {ReduceOp::kBitXor};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(factor != nullptr, call, ": PREMUL_SUM without its factor");
      const at::Tensor& tensor = factor->tensor_factor;
      return {ReduceOp::kPreMulSum, tensor.defined() ? tensor.item<double>() : factor->double_factor};
    }
    default:
      TORCH_CHECK_VALUE(false, call, ": reduction ", static_cast<int>(op.op_), " is not known");
  }
}

void check_dense(const at::Tensor& tensor, const char* call) {
  TORCH_CHECK_VALUE(tensor.defined(), call, ": an undefined tensor");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), call, ": the tensor is on ", tensor.device(),
                    ", and this backend serves the CPU; give the group a backend for that device as well "
                    "(\"cpu:collective_ops,cuda:nccl\"), or a group of its own where that backend comes from "
                    "outside PyTorch too: one group holds one of those");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, call, ": tensors must be dense, this one is ",
                    tensor.layout());
}

at::Tensor& single(std::vector<at::Tensor>& tensors, const char* call) {
  TORCH_CHECK_VALUE(tensors.size() == 1, call, ": requires a single-element tensor list, got ",
                    tensors.size());
  check_dense(tensors[0], call);
  return tensors[0];
}

void check_same_type(const std::vector<at::Tensor>& tensors, const at::Tensor& as, const char* call) {
  for (const at::Tensor& tensor : tensors) {
    check_dense(tensor, call);
    TORCH_CHECK_TYPE(tensor.scalar_type() == as.scalar_type(), call,
                     ": invalid tensor type: ", tensor.scalar_type(), " beside ", as.scalar_type());
  }
}

int64_t elements_of(const std::vector<at::Tensor>& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

std::vector<size_t> counts_of(const std::vector<at::Tensor>& tensors, const ElementType& type) {
  std::vector<size_t> counts;
  counts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) counts.push_back(type.count(tensor.numel()));
  return counts;
}

bool all_of_size(const std::vector<at::Tensor>& tensors, int64_t elements) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() != elements) return false;
  }
  return true;
}

Operand::Operand(const at::Tensor& tensor, Use use) : tensors_{tensor}, writes_(use != Use::kRead) {
  if (plain(tensor)) {
    data_ = tensor.data_ptr();
  } else {
    pack(tensor, tensor.numel(), use != Use::kWrite);
  }
}

Operand::Operand(std::vector<at::Tensor> tensors, Use use, int rows)
    : tensors_(std::move(tensors)), rows_(rows), writes_(use != Use::kRead) {
  if (tensors_.empty()) return;
  int64_t elements = 0;
  bool joined = true;
  const char* end = nullptr;
  for (const at::Tensor& tensor : tensors_) {
    elements += tensor.numel();
    if (tensor.numel() == 0) continue;
    const auto* begin = plain(tensor) ? static_cast<const char*>(tensor.const_data_ptr()) : nullptr;
    joined = joined && begin != nullptr && (end == nullptr || (rows == 1 && begin == end));
    if (data_ == nullptr) data_ = const_cast<char*>(begin);
    if (begin != nullptr) end = begin + tensor.nbytes();
  }
  if (!joined) pack(tensors_[0], elements, use != Use::kWrite);
}

void Operand::pack(const at::Tensor& like, int64_t elements, bool reads) {
  const at::AutoDispatchBelowADInplaceOrView plain_memory;
  if (writes_) {
    for (const at::Tensor& tensor : tensors_) {
      TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
                        "several elements of the tensor that receives the result are one place in memory "
                        "(expand()); clone it first");
    }
  }
  packed_ = at::empty({elements}, like.options().memory_format(std::nullopt).requires_grad(false));
  data_ = packed_.data_ptr();
  if (reads) copy(Way::kIn);
}

void Operand::deliver() {
  if (!copies_out()) return;
  const at::AutoDispatchBelowADInplaceOrView plain_memory;
  copy(Way::kOut);
}

void Operand::copy(Way way) {
  const int64_t width = packed_.numel() / rows_;  // elements of a row of the pack
  int64_t first = 0;
  for (at::Tensor& tensor : tensors_) {
    const int64_t part = tensor.numel() / rows_;
    if (plain(tensor)) {
      copy_plain(tensor, first, width, way);
    } else {
      const at::Tensor block = packed_.view({rows_, width}).narrow(1, first, part);
      if (way == Way::kIn) {
        block.copy_(tensor.reshape({rows_, part}));
      } else {
        tensor.copy_(block.reshape(tensor.sizes()));
      }
    }
    first += part;
  }
}

// Without PyTorch's dispatch, which takes longer than copying a few KiB.
void Operand::copy_plain(const at::Tensor& tensor, int64_t first, int64_t width, Way way) {
  const size_t bytes = tensor.nbytes() / static_cast<size_t>(rows_);
  if (bytes == 0) return;
  const size_t stride = static_cast<size_t>(width) * static_cast<size_t>(tensor.element_size());
  auto* own = static_cast<char*>(tensor.data_ptr());
  auto* packed = static_cast<char*>(data_) + static_cast<size_t>(first * tensor.element_size());
  for (int row = 0; row < rows_; ++row, own += bytes, packed += stride) {
    std::memcpy(way == Way::kIn ? packed : own, way == Way::kIn ? own : packed, bytes);
  }
}

}  // namespace collective_ops::pytorch
