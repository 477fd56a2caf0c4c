"""Gathering that is cut off, repeated, and shown: what is there is kept, whatever happened before."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from collective_ops.profiler import gather, runs

torch = pytest.importorskip("torch")

from collective_ops import analyze  # noqa: E402
from profiled_runs import record  # noqa: E402
from rank_pool import RankPool  # noqa: E402
from test_profiler_clocks import skew  # noqa: E402

FLAGS = "--profile-step-start 1 --profile-step-end 5 --profile-level level2 --profile-with-cpu".split()


@pytest.fixture(scope="module")
def made(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    told = rank_pool.run(record, 3, (str(root), FLAGS, 6))
    assert [one["failure"] for one in told] == [""] * 3
    return root


def on_hosts(made: Path, root: Path) -> Path:
    """Rank r's profile on a host of its own, each at another depth."""
    for rank, below in enumerate(("", "profiles", "node/7/profiles")):
        shutil.copytree(made / str(rank), root / f"host{rank}" / below / str(rank))
    return root


def gathered(folder: str, killed_after: int = -1) -> Any:
    """`killed_after`: rank 1 is killed in the middle of sending its file of that number."""
    import collective_ops

    collective_ops.init_hccl()
    rank = collective_ops.rank()
    if rank == 1 and killed_after >= 0:
        whole, sent = gather.Wire.send, []

        def send(wire: gather.Wire, data: bytes, to: int) -> None:
            sent.append(data)
            # What it offers, then chunks of files with an empty one behind each.
            if sent[1:].count(b"") == killed_after and len(sent) > 2:
                whole(wire, data[: len(data) // 2], to)
                os.kill(os.getpid(), signal.SIGKILL)
            whole(wire, data, to)

        gather.Wire.send = send  # type: ignore[method-assign]
    return gather.in_job(Path(folder) / f"host{rank}", rank, collective_ops.world_size())


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name[0] != "."}


def test_after_a_rank_died_the_next_gathering_takes_the_rest(
    rank_pool: RankPool, made: Path, tmp_path: Path
) -> None:
    root = on_hosts(made, tmp_path)
    ranks = rank_pool.start(gathered, 3, (str(root), 5))
    outcomes = ranks.wait(timeout=60)
    assert outcomes[1].exit_code == -signal.SIGKILL
    assert outcomes[0].error is not None and "rank 1" in outcomes[0].error  # told, and no waiting for ever
    came = files_of(root / "host0" / "1")
    source = files_of(root / "host1" / "profiles" / "1")
    assert 1 <= len(came) < len(source)
    assert all(source[name] == data for name, data in came.items())  # whole or not at all
    got = rank_pool.run(gathered, 3, (str(root),))[0]
    assert got.problems == () and got.ranks == (0, 1, 2)
    own, third = (len(files_of(made / str(rank))) for rank in (0, 2))
    assert got.kept == own + len(came) and got.files == len(source) - len(came) + third
    for rank in (1, 2):
        assert files_of(root / "host0" / str(rank)) == files_of(made / str(rank))
    assert analyze.cluster(root / "host0", "all", tmp_path / "out").data["missing_ranks"] == []


def test_what_was_aligned_is_not_sent_again(rank_pool: RankPool, made: Path, tmp_path: Path) -> None:
    root = on_hosts(made, tmp_path)
    (elsewhere,) = (root / "host2").rglob(f"*{runs.SUFFIX}")
    skew(elsewhere, "elsewhere", 300_000_000, 0.0)
    first = rank_pool.run(gathered, 3, (str(root),))[0]
    (line,) = first.clocks
    ahead = re.search(r"clock of host elsewhere: (\S+) ms .* to (\S+) us", line)
    assert ahead and abs(float(ahead[1]) - 300) <= float(ahead[2]) / 1e3 + 0.1
    (here,) = (root / "host0" / "2").iterdir()
    assert "clock" in json.loads((here / "profiler_info_2.json").read_text())[runs.MARK]
    assert files_of(here)["trace_view.json"] != files_of(elsewhere)["trace_view.json"]
    aligned = files_of(here)
    again = rank_pool.run(gathered, 3, (str(root),))[0]
    assert (again.files, again.bytes, again.kept) == (0, 0, first.files + first.kept)
    assert files_of(here) == aligned
    # What is damaged here, or new there, does come, and is aligned as before.
    (here / runs.OUTPUT / "trace_view.json").write_text("[]")
    third = rank_pool.run(gathered, 3, (str(root),))[0]
    assert third.files == 1
    fourth = rank_pool.run(gathered, 3, (str(root),))[0]
    assert fourth.files == 0 and files_of(here) == aligned


def test_a_bar_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        total = gather._Total(0, set())
        total.show(3, 500_000, 1_000_000)
        total.done()
        text = f"\rprofiles of rank 3: [{'#' * 15}{'.' * 15}] 0.5 MB\n"
        assert stream.getvalue() == (text if shown else "")
