"""The handwritten digits that scikit-learn ships: 1,797 grey images of 8 x 8 pixels, written by 43 people.

Rank 0 reads the file and broadcasts it, as one does on a cluster whose disks are shared: one reader
instead of as many as there are ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from collective_ops import broadcast
from torch.nn import functional
from torch.utils.data import Dataset

COUNT = 1797
TEST_COUNT = 360
SPLIT_SEED = 2023  # of the split alone, so every run and every rank tests on the same images


@dataclass(frozen=True)
class Digits:
    """float32 images [N, 1, 8, 8], of zero mean and unit deviation over the training part; their labels."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


class TrainingDigits(Dataset):
    """The training part as a data set of (image, label), for DistributedSampler and DataLoader."""

    def __init__(self, digits: Digits) -> None:
        self._digits = digits

    def __len__(self) -> int:
        return len(self._digits.train_labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._digits.train_images[index], self._digits.train_labels[index]


def load_digits(rank: int, world_size: int, limit: int | None = None) -> Digits:
    """The same split on every rank, each part cut to `limit` images. A collective call."""
    pixels = torch.zeros(COUNT, 1, 8, 8)
    labels = torch.zeros(COUNT, dtype=torch.int64)
    if rank == 0:
        from sklearn import datasets  # seconds to import, and needed by this rank only

        source = datasets.load_digits()
        pixels.copy_(torch.from_numpy(source.images).unsqueeze(1))
        labels.copy_(torch.from_numpy(source.target))
    if world_size > 1:
        broadcast(pixels, root=0)
        broadcast(labels, root=0)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(SPLIT_SEED))
    train, test = order[TEST_COUNT:], order[:TEST_COUNT]
    mean, deviation = pixels[train].mean(), pixels[train].std()
    images = (pixels - mean) / deviation
    train, test = train[:limit], test[:limit]
    return Digits(images[train], labels[train], images[test], labels[test])


def as_network_input(images: torch.Tensor, size: int) -> torch.Tensor:
    """[N, 1, 8, 8] -> [N, 3, size, size]: ResNet-50 halves five times, and expects three channels."""
    images = functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
    return images.expand(-1, 3, -1, -1).contiguous()


def shifted(images: torch.Tensor, by: int, generator: torch.Generator) -> torch.Tensor:
    """Moves each image of [N, C, H, W] by up to `by` pixels either way; what leaves one edge is replaced
    by the edge's own value, so a digit never comes back on the other side."""
    if by == 0:
        return images
    count, channels, height, width = images.shape
    padded = functional.pad(images, (by, by, by, by), mode="replicate")
    down = torch.randint(0, 2 * by + 1, (count, 1), generator=generator) + torch.arange(height)
    right = torch.randint(0, 2 * by + 1, (count, 1), generator=generator) + torch.arange(width)
    rows = down[:, None, :, None].expand(count, channels, height, width + 2 * by)
    columns = right[:, None, None, :].expand(count, channels, height, width)
    return padded.gather(2, rows).gather(3, columns)
