#!/usr/bin/env python3
"""Trains one small GPT in four ways over the same process group, and compares each with one process.

    torchrun --standalone --nproc-per-node 2 examples/parallel_gpt.py
    torchrun --standalone --nproc-per-node 2 examples/parallel_gpt.py --ways fsdp,tensor --backend gloo

data      DistributedDataParallel: every rank has the whole model and a part of the batch
fsdp      FSDP2: the parameters, too, are divided among the ranks
tensor    DTensor: every matrix of a layer is divided among the ranks
pipeline  1F1B: every rank has some of the layers, and micro-batches pass through them
"""

from __future__ import annotations

import argparse
import copy
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

WORDS, WIDTH, HEADS, LAYERS, LENGTH = 64, 32, 4, 4, 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # As many heads as this rank has of the matrices.
        parts = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)) for layer in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.second_norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first_norm(x))
        return x + self.down(functional.gelu(self.up(self.second_norm(x))))


class Words(nn.Module):
    """Words and their places as vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.words(tokens) + self.places(torch.arange(tokens.shape[1]))


def gpt() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        Words(), *(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
    )


def loss_of(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Of the next words; the last one has none."""
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def batches(steps: int, size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(WORDS, (size, LENGTH), generator=generator) for _ in range(steps)]


def train(model: nn.Module, data: list[torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for tokens in data:
        optimizer.zero_grad()
        loss_of(model(tokens), tokens).backward()
        optimizer.step()


def own_part(data: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tokens.chunk(dist.get_world_size())[dist.get_rank()] for tokens in data]


def data_parallel(model: nn.Sequential, data: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    train(nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), own_part(data))
    return model.state_dict()


def fsdp(model: nn.Sequential, data: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, Block):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, own_part(data))
    return {name: part.full_tensor() for name, part in model.state_dict().items()}


def tensor_parallel(model: nn.Sequential, data: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    plan |= {"attention.out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
    for layer in model:
        if isinstance(layer, Block):
            parallelize_module(layer, mesh, plan)
    train(model, data)
    state = model.state_dict()
    return {name: part.full_tensor() if isinstance(part, DTensor) else part for name, part in state.items()}


def pipeline(model: nn.Sequential, data: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks = dist.get_rank(), dist.get_world_size()
    borders = [len(model) * r // ranks for r in range(ranks + 1)]
    names = [str(n) for n in range(borders[rank], borders[rank + 1])]
    part = nn.Sequential(*(model[int(name)] for name in names))
    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=2 * ranks, loss_fn=loss_of)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9)
    for tokens in data:
        optimizer.zero_grad()
        inputs = (tokens,) if rank == 0 else ()
        schedule.step(*inputs, target=tokens if rank == ranks - 1 else None, losses=[])
        optimizer.step()
    own = tuple(f"{name}." for name in names)
    return {name: value for name, value in model.state_dict().items() if name.startswith(own)}


WAYS = {"data": data_parallel, "fsdp": fsdp, "tensor": tensor_parallel, "pipeline": pipeline}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", default=",".join(WAYS), help="with commas (default: all)")
    parser.add_argument("--backend", default="collective_ops")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args(arguments)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("WORLD_SIZE", 1))))
    dist.init_process_group(options.backend)
    data = batches(options.steps, 4 * dist.get_world_size())
    start = gpt()
    alone = copy.deepcopy(start)
    train(alone, data)
    worst = 0.0
    for way in options.ways.split(","):
        trained = WAYS[way](copy.deepcopy(start), data)
        differences = [(value - alone.state_dict()[name]).abs().max() for name, value in trained.items()]
        difference = torch.stack(differences).max()
        dist.all_reduce(difference, dist.ReduceOp.MAX)
        worst = max(worst, difference.item())
        if dist.get_rank() == 0:
            print(f"{way:<10} largest difference to one process: {difference.item():.1e}", flush=True)
    dist.destroy_process_group()
    return 0 if worst < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
