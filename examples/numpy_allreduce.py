#!/usr/bin/env python3
"""Statistics of numbers that no rank has alone, with numpy: mean, spread and range of all ranks' samples.

collective-ops run --nproc_per_node 4 examples/numpy_allreduce.py
"""

import numpy as np
from collective_ops import allgather, allreduce, init_hccl, rank, world_size

init_hccl()
samples = np.random.default_rng(rank()).normal(loc=5, scale=2, size=10_000 + rank())  # sizes may differ

# One call for several sums: counts and sums fit float64 exactly enough.
sums = np.array([samples.size, samples.sum(), (samples**2).sum()])
allreduce(sums)  # in place
count, total, squares = sums
mean = total / count
spread = np.sqrt(squares / count - mean**2)

# A view works as well: the lowest and the highest, in the halves of one array.
ends = np.array([-samples.min(), samples.max()])
allreduce(ends, op="max")

sizes = allgather(np.array([samples.size]))[:, 0]
assert sizes.tolist() == [10_000 + r for r in range(world_size())]
if rank() == 0:
    print(f"{int(count)} samples: mean {mean:.2f}, spread {spread:.2f}, from {-ends[0]:.1f} to {ends[1]:.1f}")
