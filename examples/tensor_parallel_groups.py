"""Tensor parallelism times data parallelism: each rank is in two groups, and each group has its own traffic.

Ranks stand in a grid. Those of a row hold one copy of a small network together, cut along its hidden layer,
and add up their parts of its output (tensor parallel). Those of a column hold the same part, see other
images, and average their gradients (data parallel). With four ranks:

    row 0:  rank 0 | rank 1        for i in 0 1 2 3; do
    row 1:  rank 2 | rank 3            RANK=$i WORLD_SIZE=4 python examples/tensor_parallel_groups.py &
                                   done; wait

Every rank trains the whole network on all images by itself, too, and compares.
"""

from __future__ import annotations

import numpy as np
from collective_ops import Group, allreduce, finalize, init_hccl, new_group, rank, world_size

INPUTS, HIDDEN, OUTPUTS, IMAGES, STEPS, RATE = 12, 32, 5, 48, 20, 0.05


def make_grid(columns: int) -> tuple[Group, Group]:
    """This rank's row and column. Only members make a group, so each rank makes its own two."""
    row, column = divmod(rank(), columns)
    everyone = range(world_size())
    tensor = new_group([r for r in everyone if r // columns == row], name=f"tensor {row}")
    data = new_group([r for r in everyone if r % columns == column], name=f"data {column}")
    return tensor, data


def train(
    images: np.ndarray,
    targets: np.ndarray,
    weights: list[np.ndarray],
    tensor: Group | None = None,
    data: Group | None = None,
) -> None:
    """Gradient descent on `weights`: the whole network, or this rank's part of its hidden layer."""
    first, second = weights
    for _ in range(STEPS):
        hidden = np.maximum(images @ first, 0)
        outputs = hidden @ second
        if tensor is not None:
            tensor.allreduce(outputs)  # each rank of the row has a part of every sum
        error = (outputs - targets) / len(images)
        gradients = [images.T @ ((error @ second.T) * (hidden > 0)), hidden.T @ error]
        for weight, gradient in zip(weights, gradients, strict=True):
            if data is not None:
                data.allreduce(gradient, "avg")  # the rows saw different images
            weight -= RATE * gradient


def main() -> None:
    init_hccl()
    columns = 2 if world_size() % 2 == 0 else 1
    tensor, data = make_grid(columns)
    random = np.random.default_rng(7)  # the same on all ranks
    images = random.standard_normal((IMAGES * data.size, INPUTS))
    targets = random.standard_normal((IMAGES * data.size, OUTPUTS))
    whole = [random.standard_normal((INPUTS, HIDDEN)) / 4, random.standard_normal((HIDDEN, OUTPUTS)) / 4]

    own = slice(tensor.rank * HIDDEN // tensor.size, (tensor.rank + 1) * HIDDEN // tensor.size)
    part = [whole[0][:, own].copy(), whole[1][own].copy()]
    batch = slice(data.rank * IMAGES, (data.rank + 1) * IMAGES)
    train(images[batch], targets[batch], part, tensor, data)
    train(images, targets, whole)

    difference = max(abs(part[0] - whole[0][:, own]).max(), abs(part[1] - whole[1][own]).max())
    largest = allreduce(np.array([difference]), "max")[0]
    if rank() == 0:
        print(
            f"{world_size()} ranks as {data.size} rows of {tensor.size}, {STEPS} steps: "
            f"weights differ from those of one process by at most {largest:.0e}"
        )
    if largest > 1e-12:
        raise SystemExit("the groups have computed something else than one process")
    finalize()


if __name__ == "__main__":
    main()
