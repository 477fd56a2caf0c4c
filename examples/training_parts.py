"""What a data-parallel training loop needs besides model and data: averaged gradients, equal initial
parameters and batch-norm statistics, a checkpoint, a schedule, and something to look at."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import torch
from collective_ops import GradientBucket, allreduce, broadcast
from torch import nn


class GradientAverager:
    """Replaces the gradients of `model` by their mean over all ranks, in place.

    A loss is the mean over a rank's own batch. The gradient of the mean over the global batch is the sum
    of the ranks' gradients divided by the number of ranks: `op="sum"` gives the sum, we divide. Left as a
    sum, the step would grow with the number of ranks, and a learning rate would hold for one number alone.

    mode "bucket": all gradients with one synchronisation; "parameter": one all-reduce per gradient.
    placed: gradients live in memory that the ranks share, so both modes reduce them where they lie.
    """

    def __init__(
        self,
        model: nn.Module,
        world_size: int,
        *,
        mode: str = "bucket",
        bucket_size_mb: float = 25,
        placed: bool = True,
    ) -> None:
        self.world_size, self.mode, self.placed = world_size, mode, placed
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        # Seconds inside collective calls, so far. Time spent waiting for a slower rank is part of it.
        self.seconds = 0.0
        self.bucket = None
        if placed:
            self.bucket = GradientBucket(
                bucket_size_mb=bucket_size_mb, reduce_op="sum", parameters=self.parameters
            )
        elif mode == "bucket":
            self.bucket = GradientBucket(bucket_size_mb=bucket_size_mb, reduce_op="sum")

    def zero_grad(self) -> None:
        if self.placed:
            self.bucket.zero_grad()  # to zero, not to None: backward then adds in the shared memory
        else:
            for parameter in self.parameters:
                parameter.grad = None

    def average(self) -> None:
        """A collective call: after `backward`, on every rank."""
        if self.world_size == 1:
            return
        start = time.perf_counter()
        if self.mode == "parameter":
            for parameter in self.parameters:
                if parameter.grad is not None:
                    allreduce(parameter.grad, op="sum")
        elif self.placed:
            self.bucket.allreduce()
        else:
            for parameter in self.parameters:
                self.bucket.add(parameter.grad)  # None too: it keeps the ranks in step
            self.bucket.allreduce()
            self.bucket.clear()
        self.seconds += time.perf_counter() - start
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_div_(gradients, self.world_size)


class DistributedAverager:
    """The same by PyTorch's DistributedDataParallel, which averages buckets while backward still runs."""

    placed = False
    seconds = 0.0  # not measured: most of it passes during backward

    def __init__(self, model: nn.Module, bucket_size_mb: float = 25) -> None:
        self.network = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=bucket_size_mb, gradient_as_bucket_view=True, broadcast_buffers=False
        )

    def zero_grad(self) -> None:
        self.network.zero_grad()

    def average(self) -> None:
        """Nothing is left to do after `backward`."""


@torch.no_grad()
def broadcast_parameters(model: nn.Module, world_size: int) -> None:
    """Rank 0's parameters and buffers on every rank: averaged gradients keep equal models equal, but do
    not make them so."""
    if world_size == 1:
        return
    for tensor in [*model.parameters(), *model.buffers()]:
        broadcast(tensor.detach(), root=0)


@torch.no_grad()
def average_batch_norm(model: nn.Module, world_size: int) -> None:
    """Running means and variances become their average over all ranks.

    Each rank has collected them from its own images alone, so ranks differ, and none has seen the whole
    set. Testing with the average uses all images; it also makes ranks bitwise equal, so a checkpoint by
    rank 0 speaks for all. (The mean of variances lacks the variance of the means, which is small, as a
    shuffled share looks like the whole.) Training itself never reads these statistics.
    """
    statistics = [b for b in model.buffers() if b.is_floating_point()]
    if world_size == 1 or not statistics:
        return
    joined = torch.cat([b.reshape(-1) for b in statistics])
    allreduce(joined, op="sum")
    joined /= world_size
    for buffer, part in zip(statistics, joined.split([b.numel() for b in statistics]), strict=True):
        buffer.copy_(part.view_as(buffer))


def learning_rate(step: int, total_steps: int, peak: float, warm_up: float) -> float:
    """Rises linearly over the first `warm_up` part of the steps, then falls to zero along a cosine."""
    rising = max(1, round(warm_up * total_steps))
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, total_steps - rising)))


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, history: list, settings: dict
) -> None:
    """Written beside `path`, flushed, then renamed: whoever reads `path` finds the old one or the new one,
    never a part. Generators are not in it: they are seeded anew for every epoch and rank."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + f".partial.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            torch.save(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epoch": epoch,
                    "history": history,
                    "settings": settings,
                },
                file,
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, settings: dict
) -> tuple[int, list]:
    """Every rank reads the file. Returns the epoch to go on with (from 0), and the metrics so far.
    ValueError where `settings` are not those of the run that wrote it."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    changed = [
        f"{name} was {value}, is {settings.get(name)}"
        for name, value in saved["settings"].items()
        if settings.get(name) != value
    ]
    if changed:
        raise ValueError(
            f"{path} is of another run: {'; '.join(changed)}. Use its settings, or another --checkpoint."
        )
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["epoch"], saved["history"]


class Progress:
    """A bar on a terminal, else one line per epoch. On one rank only (`enabled`)."""

    def __init__(self, epoch: int, epochs: int, steps: int, *, enabled: bool) -> None:
        self._enabled = enabled
        self._title = f"epoch {epoch + 1}/{epochs}"
        self._bar = None
        # The launcher reads a rank's output through a file; it says so when a terminal is behind it.
        if enabled and (sys.stderr.isatty() or os.environ.get("COLLECTIVE_OPS_TERMINAL") == "1"):
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=steps, desc=self._title, unit="step", leave=False)

    def step(self, images_per_second: float, communication_share: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(
                f"{images_per_second:.0f} images/s, communication {communication_share:.0%}", refresh=False
            )
            self._bar.update()

    def close(self, metrics: dict[str, float]) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._enabled:
            print(
                f"{self._title}: loss {metrics['loss']:.3f}, test accuracy {metrics['test_accuracy']:.2%}, "
                f"{metrics['images_per_second']:.0f} images/s, {metrics['seconds_per_step']:.2f} s/step, "
                f"communication {metrics['communication_share']:.1%}",
                flush=True,
            )
