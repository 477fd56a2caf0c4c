"""Slow ranks and slow links of generated jobs, where the truth is known: found with what they cost, none
invented."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from made_up_profiles import (
    analyzed,
    ascend_rank,
    event,
    kineto,
    tensor_parallel_job,
    training_job,
    write,
)

STEPS = 20


# Of the slow ones there are fewer than of the others: else nobody is usual.
@pytest.mark.parametrize(
    "ranks, slow",
    [
        (ranks, slow)
        for ranks in (2, 3, 8, 32, 64)
        for slow in (0, 1, 2)
        if ranks > 2 * slow or ranks == 2 > slow
    ],
)
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5])
def test_slow_ranks_and_no_others(tmp_path: Path, ranks: int, slow: int, share: float) -> None:
    late = dict.fromkeys(range(ranks // 2, ranks // 2 + slow), 10_000 * share)
    training_job(tmp_path / "p", ranks=ranks, late=late, steps=STEPS, noise_us=10, seed=ranks)
    assert slow_ranks(tmp_path / "p") == lost(late)


def slow_ranks(folder: Path) -> dict[int, float]:
    return {each["rank"]: each["late_ms"] for each in analyzed(folder, "slow_rank").data["slow_ranks"]}


def lost(late: dict[int, float]) -> Any:
    """What ranks cost that come so many us late to each step, in ms."""
    return pytest.approx({rank: STEPS * us / 1000 for rank, us in late.items()}, rel=0.05)


@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize("first, second", [(0.5, 0.01), (0.2, 0.05), (0.02, 0.2)])
def test_a_slow_rank_behind_a_slower_one(tmp_path: Path, ranks: int, first: float, second: float) -> None:
    """It is last in no call; once the slower one is mended, it is."""
    late = {ranks // 2: 10_000 * first, ranks - 1: 10_000 * second}
    training_job(tmp_path / "p", ranks=ranks, late=late, steps=STEPS, noise_us=10, seed=ranks)
    assert slow_ranks(tmp_path / "p") == lost(late)


@pytest.mark.parametrize("ranks", [4, 8, 64])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_who_only_waited_for_a_slow_rank_is_not_slow(
    tmp_path: Path, ranks: int, share: float, slow: int
) -> None:
    """Its neighbours are late to their next calls, with other ranks, too; it costs its time once."""
    late = dict.fromkeys([1, ranks - 2][:slow], 10_000 * share)
    tensor_parallel_job(tmp_path / "p", ranks=ranks, late=late, steps=STEPS)
    assert slow_ranks(tmp_path / "p") == lost(late)


@pytest.mark.parametrize("ranks", [4, 8, 64])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5])
def test_half_of_the_profiles_name_the_same_rank(tmp_path: Path, ranks: int, share: float) -> None:
    late = {ranks - 2: 10_000 * share}
    training_job(tmp_path / "p", ranks=ranks, late=late, steps=STEPS, noise_us=10)
    for rank in range(1, ranks, 2):
        (tmp_path / "p" / f"rank{rank}.json").unlink()
    assert slow_ranks(tmp_path / "p") == lost(late)


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_half_of_the_profiles_without_the_slow_one_invent_none(tmp_path: Path, ranks: int) -> None:
    training_job(tmp_path / "p", ranks=ranks, late={ranks - 1: 2000}, steps=STEPS, noise_us=10)
    for rank in range(1, ranks, 2):
        (tmp_path / "p" / f"rank{rank}.json").unlink()
    assert slow_ranks(tmp_path / "p") == {}


@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_a_recorder_names_a_rank_whose_profile_is_missing(tmp_path: Path, ranks: int, share: float) -> None:
    """comm_trace.json of half of the ranks: each says for whom it waited."""
    slow, events = ranks - 1, []
    for rank in range(0, ranks, 2):
        for k in range(STEPS):
            waited = round(10_000 * share - rank * 0.01, 3)
            arguments = {
                "Rank": rank,
                "Seq": k,
                "Process Group Name": "world",
                "Collective name": "all_reduce",
            }
            arguments |= {"In msg nelems": 64, "waited_us": waited, "longest_wait_rank": slow}
            events.append(event("all_reduce", "collective", 20_000.0 * k, waited + 100, **arguments))
    known = [{"rank": rank, "host": "host0"} for rank in range(0, ranks, 2)]
    missing = list(range(1, ranks, 2))
    write(
        tmp_path / "p" / "comm_trace.json",
        {
            "collective_ops": {"version": 1, "ranks": known, "missing_ranks": missing},
            "baseTimeNanoseconds": 0,
            "distributedInfo": {"world_size": ranks},
            "traceEvents": events,
        },
    )
    (found,) = analyzed(tmp_path / "p", "slow_rank").data["slow_ranks"]
    assert found["rank"] == slow and "its profile is missing" in found["cause"]
    assert found["late_ms"] == pytest.approx(STEPS * 10 * share, rel=0.05)


def add_trace_view(directory: Path, waits: list[tuple[int, float, float]], **last: Any) -> None:
    """Notifications that a card waits for: peer, begin in us after the first call's, duration in us."""
    events = [{"name": "process_name", "ph": "M", "pid": 9, "args": {"name": "HCCL"}}]
    for peer, begin, took in waits:
        arguments = {"notify_id": "1", "task type": "Notify_Wait", "src rank": 0, "dst rank": peer}
        start = f"{1_736_408_883_732_241.5 + begin:.3f}"
        events.append(
            {
                "name": "Notify_Wait",
                "ph": "X",
                "pid": 9,
                "tid": 2,
                "ts": start,
                "dur": took,
                "args": arguments,
            }
        )
    write(directory / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", events, **last)


def job_of_eight(folder: Path, ranks: list[int], slow: int) -> None:
    for rank in ranks:
        links = {f"{rank}-{other}": 20.0 for other in range(8)}
        directory = ascend_rank(folder, rank, links=links, elapsed_ms=(10, 4, 10))
        begins = [0.0, 10_100.0, 14_200.0]
        waits = [
            (peer, begin + 1, 8000.0 if peer == slow else 40.0)
            for begin in (begins[0], begins[2])
            for peer in range(8)
            if peer != rank
        ]
        add_trace_view(directory, [*waits, (4_294_967_295, begins[0], 9900.0)])


@pytest.mark.parametrize("ranks", [[0, 1], [0, 2, 4, 6]])
def test_notifications_of_a_text_export_name_an_absent_rank(tmp_path: Path, ranks: list[int]) -> None:
    job_of_eight(tmp_path / "p", ranks, slow=5)
    report = analyzed(tmp_path / "p")
    (slow,) = report.data["slow_ranks"]
    assert (slow["rank"], slow["late_ms"], slow["times_last"]) == (5, 16, 2 * len(ranks))
    assert f"its profile is missing; {len(ranks)} ranks waited for it" in slow["cause"]
    assert "waited 8.000 ms for it in hcom_allReduce__586_" in slow["evidence"]
    assert report.data["problems"] == []


def test_notifications_that_are_damaged_or_fit_no_call(tmp_path: Path) -> None:
    job_of_eight(tmp_path / "p", [0, 1], slow=5)
    for directory in (tmp_path / "p").iterdir():
        path = directory / "ASCEND_PROFILER_OUTPUT" / "trace_view.json"
        path.write_bytes(path.read_bytes()[:-200])
        if "_100_" in directory.name:
            add_trace_view(
                directory, [(5, 40_000, 8000), (5, -9_000_000, 8000), (-1, 1, 8000), (99, 1, 8000)]
            )
    report = analyzed(tmp_path / "p")
    assert report.data["slow_ranks"] == []
    (problem,) = report.data["problems"]
    assert problem["problem"].startswith("trace_view.json: broken or cut off at byte")


# ---- links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [4, 8, 64])
@pytest.mark.parametrize("slow", [0, 1, 2, 5])
@pytest.mark.parametrize("share", [0.2, 0.65])
def test_slow_links_and_no_others(tmp_path: Path, ranks: int, slow: int, share: float) -> None:
    chance = random.Random(ranks * 100 + slow)
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    chosen = set(chance.sample(pairs, slow))
    for rank in range(ranks):
        links = {
            f"{rank}-{other}": 20 * (share if (rank, other) in chosen else chance.uniform(0.97, 1.03))
            for other in range(ranks)
            if other != rank
        }
        ascend_rank(tmp_path / "p", rank, links={**links, f"{rank}-{rank}": 900.0})
    found = {
        (link["source"], link["destination"]): link["lost_ms"]
        for link in analyzed(tmp_path / "p", "slow_link").data["slow_links"]
    }
    assert found.keys() == chosen
    # Each link was busy for 10 ms, in which a usual one needs `share` of that.
    assert list(found.values()) == pytest.approx([10 * (1 - share)] * slow, rel=0.05)


# ---- calls that nobody waits in ----------------------------------------------------------------------


def test_a_root_that_has_gone_on_is_no_pairing_that_cannot_be(tmp_path: Path) -> None:
    """The root of a broadcast may be gone before the others come."""
    for rank in range(3):
        events = []
        for k in range(12):
            start = 1000.0 * k + (0 if rank == 0 else 500)
            arguments = {"Collective name": "broadcast", "Process Group Name": "0", "Seq": k}
            events.append(event("ncclDevKernel_Broadcast", "kernel", start, 100, pid=0, **arguments))
        write(tmp_path / "p" / f"rank{rank}.json", kineto(events, rank=rank, world_size=3))
    report = analyzed(tmp_path / "p")
    assert not any("cannot be" in note for note in report.data["notes"])
    assert report.data["slow_ranks"] == [] and report.data["lost_ms"] == 0
