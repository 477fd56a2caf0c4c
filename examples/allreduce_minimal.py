#!/usr/bin/env python3
"""The smallest program of ranks that work together. It needs no PyTorch.

collective-ops run --nproc_per_node 4 examples/allreduce_minimal.py
export WORLD_SIZE=4; for i in {0..3}; do RANK=$i python examples/allreduce_minimal.py & done; wait
"""

import collective_ops
from collective_ops import allreduce, init_hccl

init_hccl()  # RANK and WORLD_SIZE from the environment; no address, no port
rank, world_size = collective_ops.rank(), collective_ops.world_size()

# Memory that the ranks share: reduced where it lies. Any other array works too.
values = collective_ops.empty(4, "float32")
view = memoryview(values)
for index in range(4):
    view[index] = rank + index

allreduce(values, op="sum")

expected = [sum(range(world_size)) + index * world_size for index in range(4)]
assert view.tolist() == expected, (view.tolist(), expected)
print(f"rank {rank} of {world_size}: {view.tolist()}")
