"""Slow ranks and slow links of generated jobs, where the truth is known: found with what they cost, none
invented."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from made_up_profiles import analyzed, ascend_rank, event, kineto, training_job, write

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
@pytest.mark.parametrize("share", [0.01, 0.02, 0.1, 0.5])
def test_slow_ranks_and_no_others(tmp_path: Path, ranks: int, slow: int, share: float) -> None:
    late = dict.fromkeys(range(ranks // 2, ranks // 2 + slow), 10_000 * share)
    training_job(tmp_path / "p", ranks=ranks, late=late, steps=STEPS, noise_us=10, seed=ranks)
    found = {
        each["rank"]: each["late_ms"] for each in analyzed(tmp_path / "p", "slow_rank").data["slow_ranks"]
    }
    assert found.keys() == late.keys()
    assert list(found.values()) == pytest.approx([STEPS * 10 * share] * slow, rel=0.05)


@pytest.mark.parametrize("ranks", [8, 64])
def test_half_of_the_profiles_name_the_same_rank(tmp_path: Path, ranks: int) -> None:
    training_job(tmp_path / "p", ranks=ranks, late={ranks - 2: 1000}, steps=16)
    for rank in range(1, ranks, 2):
        (tmp_path / "p" / f"rank{rank}.json").unlink()
    report = analyzed(tmp_path / "p", "slow_rank")
    assert [each["rank"] for each in report.data["slow_ranks"]] == [ranks - 2]


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


@pytest.mark.parametrize("ranks", [4, 8, 16])
@pytest.mark.parametrize("slow", [0, 1, 2, 5])
@pytest.mark.parametrize("share", [0.2, 0.6])
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
