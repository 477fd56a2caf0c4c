#!/usr/bin/env python3
"""Data-parallel training with MindSpore: each rank has its own part of the data, and gradients are averaged.

collective-ops run --nproc_per_node 2 examples/mindspore_allreduce.py
"""

import mindspore as ms
import numpy as np
from collective_ops import allreduce, broadcast, init_hccl, rank, world_size
from mindspore import nn

init_hccl()
ms.set_seed(rank())
x = np.linspace(-1, 1, 64, dtype=np.float32)[rank() :: world_size(), None]  # this rank's part
inputs, labels = ms.Tensor(x), ms.Tensor(3 * x + 1)

network = nn.Dense(1, 1)
for parameter in network.trainable_params():
    broadcast(parameter)  # all ranks begin with rank 0's
loss_of = nn.MSELoss()
optimizer = nn.SGD(network.trainable_params(), learning_rate=0.5)
gradients_of = ms.value_and_grad(
    lambda data, label: loss_of(network(data), label), None, optimizer.parameters
)

for _ in range(60):
    _, gradients = gradients_of(inputs, labels)
    for gradient in gradients:
        allreduce(gradient, op="avg")  # in place
    optimizer(gradients)

slope, offset = network.weight.asnumpy().item(), network.bias.asnumpy().item()
if rank() == 0:
    print(f"slope {slope:.4f}, offset {offset:.4f} on {world_size()} ranks")
