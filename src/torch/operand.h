// Tensors as the core sees them: element types, operations, and memory that is row-major without gaps.
#pragma once

#include <cstddef>
#include <vector>

#include <collective_ops/types.h>

#include "torch/pytorch.h"

namespace collective_ops::pytorch {

// Types that the core does not know travel as bytes: `scale` of them make an element.
struct ElementType {
  DataType type = DataType::kUInt8;
  size_t scale = 1;

  size_t count(int64_t elements) const { return static_cast<size_t>(elements) * scale; }
};

// For calls that only move elements.
ElementType moved_type(const at::Tensor& tensor);
// For calls that reduce; TypeError, which names operation and type, where that is not possible.
ElementType reduced_type(const at::Tensor& tensor, ReduceOp op, const char* call);

// The core's operation, and the factor of PREMUL_SUM (else 1).
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
};
Reduction reduction_of(const c10d::ReduceOp& op, const char* call);

// ValueError or TypeError unless `tensor` is dense and on the CPU.
void check_dense(const at::Tensor& tensor, const char* call);
// The only tensor of a list, checked.
at::Tensor& single(std::vector<at::Tensor>& tensors, const char* call);
// All of one element type; TypeError otherwise.
void check_same_type(const std::vector<at::Tensor>& tensors, const at::Tensor& as, const char* call);
int64_t elements_of(const std::vector<at::Tensor>& tensors);
std::vector<size_t> counts_of(const std::vector<at::Tensor>& tensors, const ElementType& type);
bool all_of_size(const std::vector<at::Tensor>& tensors, int64_t elements);

enum class Use { kRead, kWrite, kUpdate };

// One tensor or several, one behind the other; or, with `rows`, each cut in so many equal parts, and of all
// of them the first part, then the second ... Their own memory where it lies like that, else a packed copy.
// Keeps them alive.
class Operand {
 public:
  Operand() = default;
  Operand(const at::Tensor& tensor, Use use);
  Operand(std::vector<at::Tensor> tensors, Use use, int rows = 1);

  void* data() const { return data_; }
  // Whether deliver() has something to do.
  bool copies_out() const { return writes_ && packed_.defined(); }
  // What a packed copy received goes to where it belongs. Once the call is done; from any thread.
  void deliver();

 private:
  enum class Way { kIn, kOut };

  void pack(const at::Tensor& like, int64_t elements, bool reads);
  // Between all tensors and the pack.
  void copy(Way way);
  void copy_plain(const at::Tensor& tensor, int64_t first, int64_t width, Way way);

  std::vector<at::Tensor> tensors_;
  at::Tensor packed_;
  void* data_ = nullptr;
  int rows_ = 1;
  bool writes_ = false;
};

}  // namespace collective_ops::pytorch
