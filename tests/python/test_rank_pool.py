"""The pool of ranks itself: what a rank sees, and that no end of a rank goes unnoticed."""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankError, RankPool, RankTimeout, report


def describe() -> dict[str, Any]:
    return {
        "ids": [os.environ[name] for name in ("RANK", "LOCAL_RANK", "DEVICE_ID")],
        "sizes": [os.environ[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")],
        "master": (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])),
        "job": os.environ["COLLECTIVE_OPS_JOB_ID"],
        "extra": os.environ.get("EXTRA"),
        "home": os.environ.get("HOME"),
        "pid": os.getpid(),
        "threads": len(os.listdir("/proc/self/task")),
        "modules": sorted(name for name in ("torch", "collective_ops._core") if name in sys.modules),
        "directory": os.getcwd(),
    }


def fail_on(rank: int) -> str:
    if int(os.environ["RANK"]) == rank:
        print("about to fail")
        raise ValueError(f"rank {rank} does not like this")
    return "fine"


def wait_for_ever() -> None:
    report(os.getpid())
    threading.Event().wait()


def fail_or_wait_for_ever(failing: int) -> None:
    fail_on(failing)
    wait_for_ever()


def big(size: int) -> bytes:
    return bytes([int(os.environ["RANK"])]) * size


def leave_with(code: int) -> None:
    sys.exit(code)


def torch_threads() -> tuple[int, float]:
    import torch

    return torch.get_num_threads(), float(torch.ones(1 << 20).sum())


def unpicklable() -> Any:
    return lambda: None


def at_exit(path: str) -> None:
    atexit.register(lambda: Path(path, os.environ["RANK"]).write_text("left"))
    threading.Thread(target=lambda: Path(path, "thread").write_text("done")).start()


def test_ranks_have_their_own_place_and_job(rank_pool: RankPool, tmp_path: Path) -> None:
    first = rank_pool.run(describe, world_size=3, env={"EXTRA": "x", "HOME": None}, cwd=tmp_path)
    second = rank_pool.run("test_rank_pool:describe", world_size=1)
    for rank, seen in enumerate(first):
        assert seen["ids"] == [str(rank)] * 3
        assert seen["sizes"] == ["3", "3"]
        assert seen["master"] == ("127.0.0.1", first[0]["master"][1])
        assert (seen["extra"], seen["home"], seen["directory"]) == ("x", None, str(tmp_path))
        assert seen["threads"] == 1
    assert len({seen["pid"] for seen in first + second}) == 4
    assert len({seen["job"] for seen in first}) == 1
    assert second[0]["job"] != first[0]["job"]
    assert second[0]["extra"] is None


def test_ranks_see_the_environment_of_the_test(rank_pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXTRA", "from the test")
    assert rank_pool.run(describe, world_size=1)[0]["extra"] == "from the test"


def test_torch_is_there_and_has_one_thread(rank_pool: RankPool) -> None:
    pytest.importorskip("torch")
    assert rank_pool.run(torch_threads, world_size=2) == [(1, float(1 << 20))] * 2


def test_plain_ranks_have_no_torch(plain_rank_pool: RankPool) -> None:
    assert "torch" not in plain_rank_pool.run(describe, world_size=1)[0]["modules"]


def test_many_ranks_and_large_values(rank_pool: RankPool) -> None:
    size = 1 << 20
    assert rank_pool.run(big, world_size=16, args=(size,)) == [bytes([rank]) * size for rank in range(16)]


def test_failure_names_the_rank_and_shows_its_output(rank_pool: RankPool) -> None:
    with pytest.raises(RankError) as caught:
        rank_pool.run(fail_on, world_size=3, args=(1,))
    assert [outcome.rank for outcome in caught.value.outcomes] == [1]
    text = str(caught.value)
    assert "rank 1 raised" in text
    assert "ValueError: rank 1 does not like this" in text
    assert "in fail_on" in text
    assert "about to fail" in text


def test_a_value_that_does_not_pickle_is_a_failure(rank_pool: RankPool) -> None:
    with pytest.raises(RankError, match="rank 0 raised"):
        rank_pool.run(unpicklable, world_size=1)


def test_exit_code_is_a_failure(rank_pool: RankPool) -> None:
    with pytest.raises(RankError, match="rank 0 left with exit code 3"):
        rank_pool.run(leave_with, world_size=1, args=(3,))


def test_ranks_left_waiting_for_a_failed_one_are_stopped(
    rank_pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rank_pool.GRACE_AFTER_FAILURE_S", 0.1)
    with pytest.raises(RankError) as caught:
        rank_pool.run(fail_or_wait_for_ever, world_size=3, args=(2,))
    assert not isinstance(caught.value, RankTimeout)
    assert [outcome.rank for outcome in caught.value.outcomes] == [2, 0, 1]


def test_timeout_shows_where_a_rank_stands(rank_pool: RankPool) -> None:
    with pytest.raises(RankTimeout, match=r"ranks \[0, 1\] did not end in 1") as caught:
        rank_pool.run(wait_for_ever, world_size=2, timeout=1)
    assert "in wait_for_ever" in str(caught.value)
    for outcome in caught.value.outcomes:
        assert outcome.exit_code == -signal.SIGABRT


def test_killed_and_stopped_ranks(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(wait_for_ever, world_size=3)
    assert [ranks.receive(rank) for rank in range(3)] == ranks.pids
    os.kill(ranks.pids[0], signal.SIGKILL)
    os.kill(ranks.pids[1], signal.SIGSTOP)  # deaf to SIGABRT
    os.kill(ranks.pids[2], signal.SIGTERM)
    with pytest.raises(RankTimeout, match=r"ranks \[1\]"):
        ranks.wait(timeout=1)
    ends = [-signal.SIGKILL, -signal.SIGKILL, -signal.SIGTERM]
    assert [outcome.exit_code for outcome in ranks.wait()] == ends
    with pytest.raises(RankError, match="ended without a report"):
        ranks.receive(0)


def test_two_sets_at_once(rank_pool: RankPool) -> None:
    waiting = rank_pool.start(wait_for_ever, world_size=2)
    assert rank_pool.run(fail_on, world_size=2, args=(-1,)) == ["fine", "fine"]
    waiting.abort()
    assert all(outcome.exit_code == -signal.SIGABRT for outcome in waiting.wait())


def test_exit_handlers_run(rank_pool: RankPool, tmp_path: Path) -> None:
    rank_pool.run(at_exit, world_size=2, args=(str(tmp_path),))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "thread"]


def test_closing_the_pool_ends_its_ranks() -> None:
    pool = RankPool(with_torch=False)
    ranks = pool.start(wait_for_ever, world_size=2)
    descriptors = [os.pidfd_open(pid) for pid in ranks.pids]
    pool.close()
    for descriptor in descriptors:
        # A pidfd becomes readable when its process ends; the ranks are no children of this process.
        assert select.select([descriptor], [], [], 30)[0]
        os.close(descriptor)
