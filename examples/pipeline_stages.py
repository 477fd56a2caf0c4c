"""A pipeline: each rank is a stage of a network, and activations pass from stage to stage by messages.

    collective-ops run --nproc_per_node 4 examples/pipeline_stages.py

While a stage computes a micro-batch, the next one is on its way to it, and the last one on its way out. Each
output is compared with the whole network computed at once. Needs numpy alone.
"""

from __future__ import annotations

import time

import numpy as np
from collective_ops import init_hccl, irecv, isend, rank, recv, send, world_size

MICRO_BATCHES = 16
SHAPE = (64, 256)  # samples of a micro-batch, features


def weights(stage: int) -> np.ndarray:
    """Of a stage's layer, known to all ranks so that the result can be checked."""
    return np.random.default_rng(stage).standard_normal((SHAPE[1], SHAPE[1])).astype(np.float32) / 16


def layer(stage: int, activations: np.ndarray) -> np.ndarray:
    return np.maximum(activations @ weights(stage), 0)


def inputs(micro_batch: int) -> np.ndarray:
    return np.random.default_rng(1000 + micro_batch).standard_normal(SHAPE).astype(np.float32)


def main() -> None:
    init_hccl()
    stage, stages = rank(), world_size()
    first, last = stage == 0, stage == stages - 1

    begin = time.perf_counter()
    # A message's array stays untouched until it has gone or come, so each has one of its own. The tag is the
    # number of the micro-batch: a stage that is ahead cannot confuse them.
    arriving = [np.empty(SHAPE, np.float32) for _ in range(0 if first else MICRO_BATCHES)]
    receives = [irecv(array, stage - 1, tag=number) for number, array in enumerate(arriving)]
    sends, outputs = [], []
    for number in range(MICRO_BATCHES):
        if not first:
            receives[number].wait()
        outputs.append(layer(stage, inputs(number) if first else arriving[number]))
        if not last:
            sends.append(isend(outputs[number], stage + 1, tag=number))
    for work in sends:
        work.wait()

    if last:
        seconds = time.perf_counter() - begin
        for number, output in enumerate(outputs):
            expected = inputs(number)
            for each in range(stages):
                expected = layer(each, expected)
            np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
        send(np.array([seconds]), 0)
    if first:
        seconds_of_all = np.empty(1)
        recv(seconds_of_all, stages - 1)  # comes once everything is checked
        mebibytes = (stages - 1) * MICRO_BATCHES * outputs[0].nbytes / 2**20
        print(
            f"{MICRO_BATCHES} micro-batches through {stages} stages in {seconds_of_all[0]:.2f} s, "
            f"{mebibytes:.0f} MiB of activations in messages: every micro-batch is right"
        )


if __name__ == "__main__":
    main()
