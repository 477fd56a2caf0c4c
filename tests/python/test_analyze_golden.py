"""What the summary says, word for word: tests/golden/analysis holds the answer to each job, to be reviewed
like code. With COLLECTIVE_OPS_GOLDEN_UPDATE=1 the answers are written anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_profiles import analyzed, ascend_rank, event, kineto, training_job, write
from test_analyze_inputs import dump, entry
from test_analyze_slow import job_of_eight

GOLDEN = Path(__file__).parents[1] / "golden" / "analysis"


def no_slow_rank(folder: Path) -> None:
    training_job(folder, ranks=4, steps=12)


def a_slow_rank(folder: Path) -> None:
    training_job(folder, ranks=4, steps=12, late={2: 1500})


def two_hosts(folder: Path) -> None:
    for rank in range(4):
        events = []
        for k in range(12):
            begin = 10_000.0 * k + (250_000 if rank > 1 else 0) + (400 if rank == 3 else 0)
            arguments = {"Collective name": "allreduce", "In msg nelems": 4096, "dtype": "Float"}
            arguments |= {"Process Group Name": "0", "Seq": k}
            took = 1000 - (400 if rank == 3 else 0)
            events.append(event("ncclDevKernel_AllReduce", "kernel", begin, took, pid=0, **arguments))
        host = f"host{rank // 2}"
        write(folder / f"rank{rank}.json", kineto(events, rank=rank, world_size=4, host=host))


def damage(folder: Path) -> None:
    training_job(folder, ranks=4, steps=6)
    (folder / "rank1.json").unlink()
    cut = folder / "rank2.json"
    cut.write_bytes(cut.read_bytes()[:-700])
    broken = folder / "rank3.json"
    broken.write_bytes(broken.read_bytes().replace(b'"dur": 10', b'"dur": -10', 1))
    write(folder / "settings.json", {"a": 1})
    write(folder / "copy" / "rank0.json", kineto([event("k", "kernel", 0, 1, pid=0)], rank=0))


def ascend(folder: Path) -> None:
    for rank in range(2):
        links = {f"{rank}-{1 - rank}": 9.5, f"{rank}-{rank}": 300.0}
        ascend_rank(folder, rank, links=links, start_us=1_736_408_883_732_241.5 + 1500 * rank)


def ascend_without_the_slow_rank(folder: Path) -> None:
    job_of_eight(folder, [0, 2, 4, 6], slow=5)


def hang(folder: Path) -> None:
    for rank in range(3):
        entries = [entry(k) for k in range(4 if rank != 1 else 3)]
        if rank != 1:
            entries[-1]["state"] = "scheduled"
        write(folder / f"dump_rank_{rank}.json", dump(entries, 3))


CASES: dict[str, Callable[[Path], None]] = {
    make.__name__: make
    for make in (
        no_slow_rank,
        a_slow_rank,
        two_hosts,
        damage,
        ascend,
        ascend_without_the_slow_rank,
        hang,
    )
}


@pytest.mark.parametrize("case", CASES)
def test_the_answer_stands(tmp_path: Path, case: str) -> None:
    CASES[case](tmp_path / "p")
    text = analyzed(tmp_path / "p").text.replace(str(tmp_path), "")
    golden = GOLDEN / f"{case}.txt"
    if os.environ.get("COLLECTIVE_OPS_GOLDEN_UPDATE"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_every_answer_has_its_job() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)
