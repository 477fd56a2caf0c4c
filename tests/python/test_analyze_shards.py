"""Shards of hosts give, merged, what one reading of all profiles gives."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from collective_ops import analyze, cli
from made_up_profiles import ascend_rank, event, kineto, training_job, write


def job(folder: Path) -> list[Path]:
    """Three hosts: two with torch.profiler, damage and a stray file among it, one with Ascend's."""
    training_job(folder / "all", ranks=6, late={4: 3000})
    for rank in range(6):
        target = folder / "p" / f"host{rank // 3}" / f"rank{rank}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / "all" / f"rank{rank}.json").rename(target)
    broken = folder / "p" / "host0" / "rank2.json"
    broken.write_bytes(broken.read_bytes()[:-900])
    write(folder / "p" / "host0" / "settings.json", {"a": 1})
    write(folder / "p" / "host1" / "noname.json", kineto([event("x", "kernel", 0, 1)], rank=None))
    for rank in (6, 7):
        place = folder / "p" / "host2" / "日志 x"
        ascend_rank(place, rank, links={"6-7": 10.5, f"{rank}-{rank}": 300})
    return [folder / "p" / f"host{host}" for host in range(3)]


def contents(report: analyze.ClusterReport) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in report.files}


def test_merged_shards_equal_one_run(tmp_path: Path) -> None:
    hosts = job(tmp_path)
    whole = analyze.cluster(tmp_path / "p", output=tmp_path / "whole")
    shards = []
    for host in hosts:
        shards.append(tmp_path / f"{host.name}.db")
        text, partial = analyze.shard(host, shards[-1])
        assert partial == (host.name != "host2") and "ranks" in text
    for order in (shards, shards[::-1]):
        merged = analyze.merge(order, output=tmp_path / "merged")
        assert contents(merged) == contents(whole)
        ours, theirs = ({k: v for k, v in report.data.items() if k != "files"} for report in (merged, whole))
        assert ours == theirs and len(theirs["ranks"]) == 8
        assert [slow["rank"] for slow in ours["slow_ranks"]] == [4]


def test_shards_that_overlap_or_are_damaged(tmp_path: Path) -> None:
    training_job(tmp_path / "p", ranks=2, steps=4)
    good = tmp_path / "good.db"
    analyze.shard(tmp_path / "p", good)
    broken = tmp_path / "broken.db"
    broken.write_bytes(good.read_bytes()[:5000])
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE x (a)").connection.close()
    report = analyze.merge([good, good, broken, other, tmp_path / "nowhere.db"], output=tmp_path / "out")
    assert report.partial and len(report.data["ranks"]) == 2
    texts = [problem["problem"] for problem in report.data["problems"]]
    assert sum("is of rank" in text for text in texts) >= 2
    assert any("no shard" in text for text in texts) and any("no such file" in text for text in texts)
    with pytest.raises(ValueError, match="no shard with profiles"):
        analyze.merge([other], output=tmp_path / "out")


@pytest.mark.parametrize("seed", range(8))
def test_random_damage_to_a_shard_is_survived(tmp_path: Path, seed: int) -> None:
    import random

    training_job(tmp_path / "p", ranks=3, steps=3)
    shard = tmp_path / "shard.db"
    analyze.shard(tmp_path / "p", shard)
    data, chance = shard.read_bytes(), random.Random(seed)
    for _ in range(25):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 40)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        shard.write_bytes(bytes(damaged))
        try:
            report = analyze.merge(shard, output=tmp_path / "out")
        except (ValueError, OSError):
            continue
        assert len(report.data["ranks"]) <= 3


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training_job(tmp_path / "p", ranks=2, steps=4)
    shard = str(tmp_path / "a.db")
    assert cli.main(["analyze", "shard", "-d", str(tmp_path / "p"), "-o", shard]) == analyze.COMPLETE
    assert "2 ranks (0-1)" in capsys.readouterr().out
    assert cli.main(["analyze", "merge", shard]) == analyze.COMPLETE
    assert (tmp_path / "cluster_analysis_output" / "summary.csv").exists()
    assert cli.main(["analyze", "merge", str(tmp_path / "no.db")]) == analyze.NOTHING
    assert cli.main(["analyze", "shard", "-d", str(tmp_path / "p"), "-o", "/no/where.db"]) == analyze.FAILED


def test_the_example_of_hosts(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "analyze_hosts.sh"
    done = subprocess.run(
        ["bash", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "4 ranks (0-3)" in done.stdout and "8 of 8 ranks" in done.stdout
    assert "slow rank 5 (confidence high)" in done.stdout
    assert (tmp_path / "cluster_analysis_output" / "timeline" / "cluster_timeline.json").exists()
