"""How process groups form: who dies or is stopped meanwhile, and what groups of one process share."""

from __future__ import annotations

import json
import os
import signal
import threading
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")

import torch.distributed as dist  # noqa: E402
from rank_pool import RankPool, Ranks, report  # noqa: E402
from torch_groups import process_group, rank, world_size  # noqa: E402

# Longer than the tests wait: no error here is one that came at the deadline.
PATIENCE = timedelta(seconds=300)


class ToldStore(dist.Store):
    """Reports when this rank has written who it is: from then on others can know of it."""

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner = inner

    def set(self, key: str, value: str) -> None:
        self.inner.set(key, value)
        if "collective_ops/rank/" in key:
            report(key)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def add(self, key: str, amount: int) -> int:
        return self.inner.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self.inner.check(keys)

    def wait(self, keys: list[str], timeout: timedelta = PATIENCE) -> None:
        self.inner.wait(keys, timeout)


def error_of(call: object) -> str:
    try:
        call()  # type: ignore[operator]
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def killed(ranks: Ranks, victim: int) -> list[str]:
    """Kills that rank once all have reported; what the others say."""
    for r in range(len(ranks.pids)):
        ranks.receive(r)
    os.kill(ranks.pids[victim], signal.SIGKILL)
    outcomes = [outcome for outcome in ranks.wait(60) if outcome.rank != victim]
    assert all(outcome.ok for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes]


def joins_where_one_is_missing(path: str) -> str:
    n = world_size() + 1
    store = ToldStore(dist.FileStore(path, n))
    return error_of(
        lambda: dist.init_process_group(
            "collective_ops", store=store, rank=rank(), world_size=n, timeout=PATIENCE
        )
    )


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_dies_while_the_world_forms(rank_pool: RankPool, victim: int, tmp_path: Path) -> None:
    ranks = rank_pool.start(joins_where_one_is_missing, 3, (str(tmp_path / "store"),))
    for text in killed(ranks, victim):
        assert f"rank {victim} (pid {ranks.pids[victim]}) was lost" in text


def makes_a_group_without(victim: int, others: list[int]) -> str:
    with process_group():
        dist.barrier()
        report("in the world")
        if rank() == victim:
            threading.Event().wait()
        return error_of(
            lambda: (
                dist.new_group(others, timeout=PATIENCE, use_local_synchronization=True)
                if rank() in others
                else None
            )
        )


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_member_dies_while_a_new_group_forms(rank_pool: RankPool, victim: int) -> None:
    ranks = rank_pool.start(makes_a_group_without, 3, (victim, [0, 1, 2]))
    for text in killed(ranks, victim):
        # With rank 0's process goes the store, too; the reason is named all the same.
        assert f"rank {victim} (pid {ranks.pids[victim]}) was lost" in text


def makes_groups_beside_a_dead_rank() -> float:
    with process_group():
        dist.barrier()
        report("in the world")
        if rank() == 1:
            threading.Event().wait()
        while "lost" not in error_of(lambda: dist.all_reduce(torch.ones(1))):
            pass  # until the death is known
        group = dist.new_group([0, 2], timeout=PATIENCE)
        number = torch.ones(1)
        dist.all_reduce(number, group=group)
        return number.item()


def test_the_others_make_groups_when_a_rank_is_dead(rank_pool: RankPool) -> None:
    assert killed(rank_pool.start(makes_groups_beside_a_dead_rank, 3), 1) == [2.0, 2.0]


def waits_for_a_world(store: str) -> str:
    if rank() == 1:
        return ""
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        dist.init_process_group("collective_ops", init_method=store, rank=0, world_size=2, timeout=PATIENCE)
    except KeyboardInterrupt:
        return "interrupted"
    return "joined"


def test_ctrl_c_ends_the_wait_for_a_world(rank_pool: RankPool, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    assert rank_pool.run(waits_for_a_world, 2, (store,))[0] == "interrupted"


def traced(path: str) -> None:
    for number in range(2):
        with process_group(init_method=f"file://{path}{number}", rank=rank(), world_size=world_size()):
            dist.all_reduce(torch.ones(1))
            for _ in range(3):
                group = dist.new_group([0, 2])
                if rank() != 1:
                    dist.broadcast(torch.ones(4), 2, group=group)


def test_groups_of_one_world_leave_one_trace_and_the_next_world_another(
    rank_pool: RankPool, tmp_path: Path
) -> None:
    rank_pool.run(traced, 3, (str(tmp_path / "store"),), env={"COLLECTIVE_OPS_TRACE": "1"}, cwd=tmp_path)
    traces = sorted(path.name for path in tmp_path.glob("comm_trace*"))
    assert traces == ["comm_trace.2.json", "comm_trace.json"]
    for name in traces:
        events = json.loads((tmp_path / name).read_text())["traceEvents"]
        calls = [event for event in events if event.get("name") in ("all_reduce", "broadcast")]
        groups = {event["args"]["Process Group Name"] for event in calls}
        assert sum(event["name"] == "broadcast" for event in calls) == 3 * 2, name
        assert sum(event["name"] == "all_reduce" for event in calls) == 3 and len(groups) == 4
