// Several tensors in one call: small ones of one element type are packed one behind the other, so that ranks
// meet once; large ones travel by themselves, since copying them would take longer than meeting.
#pragma once

#include <vector>

#include "torch/pytorch.h"

namespace collective_ops::pytorch {

// The indices of the tensors that go together, in the order of first appearance; equal on ranks whose tensors
// have equal sizes. `parts`: how many times its bytes a tensor's call moves. ValueError for a tensor that is
// not dense and on the CPU.
std::vector<std::vector<size_t>> calls_for(const std::vector<at::Tensor>& tensors, int parts,
                                           const char* call);

std::vector<at::Tensor> select(const std::vector<at::Tensor>& tensors, const std::vector<size_t>& indices);

// ValueError or TypeError unless each of `wholes` has its part's type and `size` times its elements.
void check_pairs(const std::vector<at::Tensor>& wholes, const std::vector<at::Tensor>& parts, int size,
                 const char* call);

}  // namespace collective_ops::pytorch
