"""A long life of the PyTorch backend: random collectives and messages, groups made and destroyed, all exact,
and nothing left behind."""

from __future__ import annotations

import random
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")

import torch.distributed as dist  # noqa: E402
from rank_pool import RankPool  # noqa: E402
from test_soak import check_growth, held  # noqa: E402
from torch_groups import process_group, rank, world_size  # noqa: E402

SEED = 20_261
SIZES = (1, 3, 10, 100, 1000, 5000)
ROUND = 200  # collectives between two groups


class Life:
    """Every rank draws the same choices, so each knows what must come of every call."""

    def __init__(self) -> None:
        self.choice = random.Random(SEED)
        self.drawn = 0

    def step(self, group: dist.ProcessGroup, members: list[int]) -> None:
        size = self.choice.choice(SIZES)
        call = self.choice.choice((self.reduces, self.moves, self.gathers, self.scatters, self.exchanges))
        later = self.choice.random() < 0.3
        self.drawn += 1
        if rank() in members:
            call(group, members, size, later)

    def values(self, member: int, size: int) -> torch.Tensor:
        return torch.arange(size, dtype=torch.int64) * 7 + 1000 * member + self.drawn % 100

    def finish(self, work: dist.Work | None) -> None:
        if work is not None:
            work.wait()

    def reduces(self, group: dist.ProcessGroup, members: list[int], size: int, later: bool) -> None:
        mine = self.values(rank(), size)
        self.finish(dist.all_reduce(mine, group=group, async_op=later))
        assert torch.equal(mine, sum(self.values(member, size) for member in members))

    def moves(self, group: dist.ProcessGroup, members: list[int], size: int, later: bool) -> None:
        mine = self.values(rank(), size)
        self.finish(dist.broadcast(mine, group_src=0, group=group, async_op=later))
        assert torch.equal(mine, self.values(members[0], size))

    def gathers(self, group: dist.ProcessGroup, members: list[int], size: int, later: bool) -> None:
        whole = torch.empty(size * len(members), dtype=torch.int64)
        self.finish(dist.all_gather_single(whole, self.values(rank(), size), group, async_op=later))
        assert torch.equal(whole, torch.cat([self.values(member, size) for member in members]))

    def scatters(self, group: dist.ProcessGroup, members: list[int], size: int, later: bool) -> None:
        part, place = torch.empty(size, dtype=torch.int64), members.index(rank())
        mine = self.values(rank(), size * len(members))
        self.finish(dist.reduce_scatter_single(part, mine, group=group, async_op=later))
        total = sum(self.values(member, size * len(members)) for member in members)
        assert torch.equal(part, total[size * place : size * (place + 1)])

    def exchanges(self, group: dist.ProcessGroup, members: list[int], size: int, later: bool) -> None:
        """To the next member and from the one before."""
        place, got = members.index(rank()), torch.empty(size, dtype=torch.int64)
        sent = dist.isend(self.values(rank(), size), group_dst=(place + 1) % len(members), group=group)
        dist.recv(got, group_src=(place - 1) % len(members), group=group)
        sent.wait()
        assert torch.equal(got, self.values(members[place - 1], size))


def live(calls: int) -> tuple:
    life, groups, rounds = Life(), 0, calls // ROUND
    with process_group(seconds=300):
        before = held()
        for number in range(rounds):
            if number == rounds // 4:
                dist.barrier()
                before = held()
            members = sorted(life.choice.sample(range(world_size()), life.choice.randint(2, world_size())))
            group = dist.new_group(members)
            groups += 1
            for step in range(ROUND):
                if step % 4 == 0:
                    life.step(group, members)
                else:
                    life.step(dist.group.WORLD, list(range(world_size())))
            if rank() in members:
                dist.destroy_process_group(group)
        dist.barrier()
        return before, held(), groups


def test_four_thousand_calls(rank_pool: RankPool) -> None:
    check_growth(rank_pool.run(live, 3, (4_000,), timeout=200), 16 * 1024)


@pytest.mark.slow
def test_two_hundred_thousand_calls(rank_pool: RankPool) -> None:
    began = time.monotonic()
    results = rank_pool.run(live, 4, (200_000,), timeout=3600)
    print(f"200,000 calls on 4 ranks, {results[0][2]} groups: {time.monotonic() - began:.0f} s, {results}")
    check_growth(results, 16 * 1024)
