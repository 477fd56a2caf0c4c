// torch.distributed._symmetric_memory on CPUs: tensors that every rank of a group reaches by plain loads and
// stores, with barriers and signals.
#pragma once

#include "torch/pytorch.h"

namespace collective_ops::pytorch {

// Makes this backend the allocator of symmetric memory for CPUs, unless there is one.
void offer_symmetric_memory();

}  // namespace collective_ops::pytorch
