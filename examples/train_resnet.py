#!/usr/bin/env python3
"""Trains ResNet-50 on handwritten digits with data parallelism: every rank has the whole model and its own
part of the images, and gradients are averaged over all ranks before each step.

Start it with the launcher, with torchrun, by a shell loop, or alone:

    collective-ops run --nproc_per_node 8 examples/train_resnet.py
    torchrun --standalone --nproc-per-node 8 examples/train_resnet.py
    export WORLD_SIZE=8; for i in {0..7}; do RANK=$i DEVICE_ID=$i python examples/train_resnet.py & done; wait
    python examples/train_resnet.py

With `--ddp` PyTorch's DistributedDataParallel averages, over our backend of torch.distributed.

The lines that make it parallel are `init_hccl`, the sampler, `broadcast` of the initial parameters, and
`GradientAverager` (training_parts.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import digits as digits_data
import torch
from collective_ops import allreduce, init_hccl
from collective_ops.profiler import Profiler, add_profile_args, profile
from resnet import ResNet50
from torch.nn import functional
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from training_parts import (
    DistributedAverager,
    GradientAverager,
    Progress,
    average_batch_norm,
    broadcast_parameters,
    learning_rate,
    load_checkpoint,
    save_checkpoint,
)


def whole_number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1 on")
    return int(text)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=whole_number, default=12)
    parser.add_argument(
        "--stop-after", type=int, metavar="EPOCH", help="leave early; --resume goes on from there"
    )
    parser.add_argument(
        "--batch-size", type=whole_number, default=32, help="images per rank and step (default 32)"
    )
    parser.add_argument(
        "--lr", type=float, default=2e-3, help="peak, for 256 images per step; scaled with its root"
    )
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--warm-up", type=float, default=0.2, help="part of all steps with a rising rate")
    parser.add_argument("--image-size", type=whole_number, default=32)
    parser.add_argument("--shift", type=int, default=4, help="augmentation: pixels each image may move")
    parser.add_argument("--num-classes", type=int, default=10)
    parser.add_argument(
        "--images", type=whole_number, metavar="N", help="train and test with N images each, for a quick look"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--device",
        default="cpu",
        help="where the model computes (default cpu, whose memory the collectives work on)",
    )
    parser.add_argument(
        "--threads", type=whole_number, help="of each rank (default: cores / ranks, at least 1)"
    )
    parser.add_argument(
        "--mode",
        choices=("bucket", "parameter"),
        default="bucket",
        help="one synchronisation for all gradients, or one all-reduce for each",
    )
    parser.add_argument(
        "--ddp",
        nargs="?",
        const="collective_ops",
        metavar="BACKEND",
        help="average by PyTorch's DistributedDataParallel over that backend (default collective_ops)",
    )
    parser.add_argument("--bucket-size-mb", type=float, default=25)
    parser.add_argument(
        "--placed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="gradients lie in memory that the ranks share, and are reduced without a copy",
    )
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="written by rank 0 after every epoch")
    parser.add_argument("--resume", action="store_true", help="go on from --checkpoint where it exists")
    parser.add_argument("--json", type=Path, metavar="FILE", help="metrics of all epochs, written by rank 0")
    parser.add_argument("--require-accuracy", type=float, metavar="PERCENT", help="exit 1 below this")
    add_profile_args(parser)
    options = parser.parse_args(arguments)
    if options.resume and options.checkpoint is None:
        parser.error("--resume needs --checkpoint FILE")
    return options


class Trainer:
    """One rank's model, optimizer and data; `run` trains and tests it."""

    def __init__(self, options: argparse.Namespace, rank: int, world_size: int) -> None:
        self.options, self.rank, self.world_size = options, rank, world_size
        self.device = torch.device(options.device)
        self.digits = digits_data.load_digits(rank, world_size, limit=options.images)
        dataset = digits_data.TrainingDigits(self.digits)
        self.sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=options.seed)
        self.loader = DataLoader(dataset, batch_size=options.batch_size, sampler=self.sampler)

        torch.manual_seed(options.seed)
        self.model = ResNet50(options.num_classes).to(self.device)
        broadcast_parameters(self.model, world_size)
        self.network = self.model
        if options.ddp:
            self.averager = DistributedAverager(self.model, options.bucket_size_mb)
            self.network = self.averager.network
        else:
            self.averager = GradientAverager(
                self.model,
                world_size,
                mode=options.mode,
                bucket_size_mb=options.bucket_size_mb,
                placed=options.placed,
            )
        # Momentum SGD, usual for ImageNet, needs thousands of steps; here there are six in an epoch.
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=options.lr, weight_decay=options.weight_decay, fused=True
        )
        self.profiler: Profiler | None = None
        self.first_epoch = 0
        self.history: list[dict[str, float]] = []
        if options.resume and options.checkpoint.exists():
            self.first_epoch, self.history = load_checkpoint(
                options.checkpoint, self.model, self.optimizer, self.settings()
            )

    def settings(self) -> dict[str, object]:
        """What decides the numbers of a run; a run that goes on with other settings is another run."""
        names = (
            "epochs",
            "batch_size",
            "lr",
            "weight_decay",
            "warm_up",
            "image_size",
            "shift",
            "images",
            "num_classes",
            "seed",
            "threads",
        )
        return {"world_size": self.world_size} | {name: getattr(self.options, name) for name in names}

    def run(self) -> dict[str, object]:
        last = min(self.options.epochs, self.options.stop_after or self.options.epochs)
        for epoch in range(self.first_epoch, last):
            self.history.append(self.train_epoch(epoch))
            if self.options.checkpoint is not None and self.rank == 0:
                save_checkpoint(
                    self.options.checkpoint,
                    self.model,
                    self.optimizer,
                    epoch + 1,
                    self.history,
                    self.settings(),
                )
        return {
            "world_size": self.world_size,
            "mode": self.options.ddp or self.options.mode,
            "placed": self.options.placed,
            "epochs": self.history,
        }

    def train_epoch(self, epoch: int) -> dict[str, float]:
        options, steps = self.options, len(self.loader)
        self.model.train()
        self.sampler.set_epoch(epoch)
        # A function of seed, epoch and rank alone, so a resumed run needs no saved generator.
        generator = torch.Generator().manual_seed((options.seed * 1_000_003 + epoch) * 65_536 + self.rank)
        global_batch = options.batch_size * self.world_size
        progress = Progress(epoch, options.epochs, steps, enabled=self.rank == 0)
        loss_sum, images_seen = torch.zeros((), dtype=torch.float64), 0
        start, communication_before = time.perf_counter(), self.averager.seconds
        for step, (images, labels) in enumerate(self.loader):
            rate = learning_rate(epoch * steps + step, options.epochs * steps, options.lr, options.warm_up)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * math.sqrt(global_batch / 256)
            inputs = digits_data.shifted(
                digits_data.as_network_input(images, options.image_size), options.shift, generator
            )
            self.averager.zero_grad()
            loss = functional.cross_entropy(self.network(inputs.to(self.device)), labels.to(self.device))
            loss.backward()
            self.averager.average()
            self.optimizer.step()
            loss_sum += loss.detach().double().cpu() * len(labels)
            images_seen += len(labels)
            if self.profiler is not None:
                self.profiler.step()
            seconds = time.perf_counter() - start
            progress.step(
                images_seen * self.world_size / seconds,
                (self.averager.seconds - communication_before) / seconds,
            )
        seconds = time.perf_counter() - start
        communication = self.averager.seconds - communication_before
        metrics = self.evaluate(loss_sum, images_seen, communication / seconds)
        metrics |= {
            "epoch": epoch + 1,
            "seconds": seconds,
            "seconds_per_step": seconds / steps,
            "images_per_second": images_seen * self.world_size / seconds,
        }
        progress.close(metrics)
        return metrics

    @torch.no_grad()
    def evaluate(self, loss_sum: torch.Tensor, images_seen: int, communication: float) -> dict[str, float]:
        """Every rank tests its share of the images; one all-reduce adds up everybody's counts."""
        average_batch_norm(self.model, self.world_size)
        self.model.eval()
        # A plain stride, not a DistributedSampler: that repeats images to give every rank as many.
        images = self.digits.test_images[self.rank :: self.world_size]
        labels = self.digits.test_labels[self.rank :: self.world_size]
        correct = 0
        for part, expected in zip(images.split(64), labels.split(64), strict=True):
            inputs = digits_data.as_network_input(part, self.options.image_size)
            correct += int((self.model(inputs.to(self.device)).argmax(1).cpu() == expected).sum())
        totals = torch.tensor(
            [correct, len(labels), loss_sum, images_seen, communication], dtype=torch.float64
        )
        if self.world_size > 1:
            allreduce(totals, op="sum")
        correct_all, tested, loss_all, seen, share = totals.tolist()
        return {
            "test_accuracy": correct_all / tested,
            "tested_images": int(tested),
            "loss": loss_all / seen,
            "communication_share": share / self.world_size,
        }


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    start = time.perf_counter()
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    device_id = int(os.environ.get("DEVICE_ID", os.environ.get("LOCAL_RANK", rank)))
    options.threads = options.threads or max(1, len(os.sched_getaffinity(0)) // world_size)
    torch.set_num_threads(options.threads)

    init_hccl(rank=rank, world_size=world_size, device_id=device_id)
    if options.ddp:  # a group of its own, beside the one of init_hccl
        torch.distributed.init_process_group(options.ddp)
    trainer = Trainer(options, rank, world_size)
    with profile(options) as trainer.profiler:
        results = trainer.run()
    if options.ddp:
        torch.distributed.destroy_process_group()
    results["seconds"] = time.perf_counter() - start
    accuracy = trainer.history[-1]["test_accuracy"] if trainer.history else 0.0
    results["test_accuracy"] = accuracy
    if rank == 0:
        if options.json is not None:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
        print(f"test accuracy {accuracy:.2%} after {results['seconds']:.0f} s", flush=True)
    if rank == 0 and options.require_accuracy is not None and 100 * accuracy < options.require_accuracy:
        print(f"below the required {options.require_accuracy} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
