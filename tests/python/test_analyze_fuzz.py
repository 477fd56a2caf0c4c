"""Every reader of the analysis on input that is broken at random: it ends, and with an error that
says so or a result. FUZZ_SECONDS in the environment makes it long."""

from __future__ import annotations

import os
import pickle
import random
import time
from pathlib import Path
from typing import Any

import pytest
from collective_ops import analyze
from made_up_profiles import ascend_rank, event, training_job, write
from test_analyze import ascend_database
from test_analyze_inputs import dump, entry, packed
from test_analyze_slow import add_trace_view

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
PIECES = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\x00",
    b"\xff",
    b"-",
    b"1e999",
    b"NaN",
    b"9" * 25,
]


def all_ranks(ranks: int) -> dict[str, Any]:
    """As COLLECTIVE_OPS_TRACE=1 leaves it: all ranks in one file."""
    calls = [
        event(
            "allreduce",
            "collective",
            1000.0 * k + rank,
            500.0 - rank,
            pid=rank,
            Rank=rank,
            Seq=k,
            waited_us=0.5,
            longest_wait_rank=1 - rank,
            **{"Collective name": "allreduce", "In msg nelems": 64, "Process Group Name": "world"},
        )
        for k in range(6)
        for rank in range(ranks)
    ]
    about = {
        "world_size": ranks,
        "missing_ranks": [],
        "ranks": [{"rank": r, "host": "a"} for r in range(ranks)],
    }
    return {"schemaVersion": 1, "collective_ops": about, "baseTimeNanoseconds": 5, "traceEvents": calls}


def make(folder: Path, kind: str) -> None:
    if kind == "kineto":
        training_job(folder, ranks=2, steps=3)
    elif kind == "ascend_text":
        for rank in range(2):
            directory = ascend_rank(folder, rank, links={f"{rank}-{other}": 9.5 for other in range(3)})
            header = "Name,Type,Accelerator Core,Duration(us),Start Time(us),Stream ID\n"
            row = "mm,MatMul,AI_CORE,1.5,1736408883732241.250,7\n"
            (directory / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_text(header + row * 5)
            add_trace_view(directory, [(2, 1.0, 8000.0), (1, 2.0, 700.0)])
    elif kind == "comm_trace":
        write(folder / "comm_trace.json", all_ranks(2))
    elif kind == "ascend_db":
        for rank in range(2):
            ascend_database(folder, rank, 1 - rank, 3)
    elif kind == "archive":
        training_job(folder.parent / "unpacked", ranks=2, steps=2)
        folder.mkdir()
        packed(folder.parent / "unpacked", folder / "a.zip")
        packed(folder.parent / "unpacked", folder / "b.tar")
    else:
        folder.mkdir()
        for rank in range(2):
            content = pickle.dumps(dump([entry(k) for k in range(5)], 2))
            (folder / f"nccl_trace_rank_{rank}").write_bytes(content)


def broken(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        at = chance.randrange(max(1, len(out)))
        what = chance.randrange(4)
        if what == 0:
            out[at : at + chance.randrange(1, 30)] = b""
        elif what == 1:
            out[at:at] = chance.choice(PIECES)
        elif what == 2:
            out[at:at] = out[at : at + chance.randrange(60)]
        elif out:
            out[min(at, len(out) - 1)] = chance.randrange(256)
    return bytes(out[: chance.randrange(len(out) + 1)] if chance.random() < 0.1 else out)


@pytest.mark.parametrize(
    "kind", ["kineto", "comm_trace", "ascend_text", "ascend_db", "archive", "flight_recorder"]
)
def test_broken_input_ends_in_a_result_or_an_error(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "p"
    make(folder, kind)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    seed = time.time_ns() if SECONDS else 1
    chance, end, rounds = random.Random(seed), time.monotonic() + SECONDS, 0
    while rounds < 25 or time.monotonic() < end:
        rounds += 1
        for path in chance.sample(sorted(files), chance.randint(1, len(files))):
            path.write_bytes(broken(files[path], chance))
        try:
            report = analyze.cluster(folder, output=tmp_path / "out")
        except ValueError as error:
            told = "no profile that can be used" in str(error) or "mode all needs" in str(error)
            assert told, f"seed {seed}, round {rounds}: {error}"
        else:
            assert len(report.data["ranks"]) <= 2 or report.partial, f"seed {seed}, round {rounds}"
        for path, data in files.items():
            path.write_bytes(data)
