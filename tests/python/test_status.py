"""`collective-ops status` on real ranks: that wait, hang, stop, die and leave; and after their end."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import collective_ops
import numpy as np
import pytest
from collective_ops import cli, jobs, status
from collective_ops.jobs import Group, Process, Rank
from rank_pool import RankPool, Ranks, report


def reduce_twice(late: int, count: int) -> float:
    """The rank `late` stays outside of the second call until it gets a signal."""
    collective_ops.init_hccl()
    report("joined")
    values = np.ones(count, np.float32)
    collective_ops.allreduce(values)
    if collective_ops.rank() == late:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        report("outside")
        signal.pause()
    collective_ops.allreduce(values)
    return float(values[0])


def job_of(pid: int) -> Group | None:
    found = [group for group in jobs.find_groups() if group.belongs_to(pid)]
    assert len(found) <= 1
    return found[0] if found else None


def until(ready: Callable[[Group], bool], pid: int) -> Group:
    """The state of a job once it is as expected; the last one seen is what the assertion shows."""
    deadline = time.monotonic() + 30
    while True:
        group = job_of(pid)
        if group is not None and ready(group):
            return group
        assert time.monotonic() < deadline, group
        time.sleep(0.02)


def waiting(*ranks: int) -> Callable[[Group], bool]:
    return lambda group: all(group.ranks and group.ranks[rank].activity == "waiting" for rank in ranks)


@pytest.fixture
def hanging(rank_pool: RankPool) -> Iterator[Ranks]:
    """Ranks 0 and 1 of three wait for rank 2 in call #2."""
    ranks = rank_pool.start(reduce_twice, 3, (2, 1000))
    ranks.receive(2)
    assert ranks.receive(2) == "outside"
    until(waiting(0, 1), ranks.pids[0])
    yield ranks
    ranks.abort()


def test_a_hang_is_explained_and_not_disturbed(hanging: Ranks) -> None:
    group = job_of(hanging.pids[1])
    assert group is not None
    assert [rank.activity for rank in group.ranks] == ["waiting", "waiting", "outside"]
    assert [rank.pid for rank in group.ranks] == hanging.pids
    assert [(rank.issued, rank.finished) for rank in group.ranks] == [(2, 1), (2, 1), (1, 1)]
    for rank in group.ranks[:2]:
        assert rank.waits_for == 2 and 0 <= rank.waited_s < 60
    assert group.ranks[2].waits_for is None
    (finding,) = status.findings(group)
    pid = hanging.pids[2]
    assert finding.startswith("Ranks 0-1 wait in call #2 (all_reduce of 1000 float32, op sum), for ")
    assert "for rank 2, which finished call #1 (all_reduce of 1000 float32, op sum)" in finding
    assert f"outside of any call (process {pid}, state S (sleeping))" in finding
    assert f"py-spy dump --pid {pid}" in finding
    assert status.state_of(group) == "waiting"

    os.kill(pid, signal.SIGUSR1)
    assert hanging.results() == [9.0, 9.0, 9.0]


def test_a_hang_inside_a_large_call_too(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(reduce_twice, 3, (0, 3_000_000))
    ranks.receive(0)
    ranks.receive(0)
    group = until(waiting(1, 2), ranks.pids[0])
    (finding,) = status.findings(group)
    assert "Ranks 1-2 wait in call #2 (all_reduce of 3000000 float32" in finding
    assert "for rank 0, which finished call #1" in finding
    os.kill(ranks.pids[0], signal.SIGUSR1)
    assert ranks.results() == [9.0, 9.0, 9.0]


def test_the_command_prints_a_table_and_json(hanging: Ranks) -> None:
    job = job_of(hanging.pids[0])
    assert job is not None
    name = job.job.removeprefix("id ")
    for wanted in (name, job.job, str(hanging.pids[2])):
        printed = command("status", wanted)
        assert printed.returncode == 0 and not printed.stderr
        lines = printed.stdout.splitlines()
        assert lines[0] == f"job {name!r}: 3 ranks, waiting"
        assert lines[1].split()[:3] == ["rank", "process", "state"]
        assert lines[2].split()[:4] == ["0", str(hanging.pids[0]), "waiting", "#2"]
        assert "rank 2" in lines[2] and "finished" in lines[4]
        assert lines[5].startswith("Ranks 0-1 wait in call #2")

    data = json.loads(command("status", "--json", name).stdout)
    (group,) = data["groups"]
    assert group["job"] == job.job and group["state"] == "waiting"
    assert [rank["pid"] for rank in group["ranks"]] == hanging.pids
    assert group["ranks"][0]["call"] == "all_reduce of 1000 float32, op sum"
    assert group["ranks"][1]["waits_for"] == 2

    listed = command("status").stdout
    (line,) = [line for line in listed.splitlines() if line.startswith(f"{name} ")]
    assert line.split()[-1] == "waiting" and str(hanging.pids[0]) in line


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from collective_ops.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )


def test_the_parent_finds_the_job(hanging: Ranks) -> None:
    assert any(
        group.belongs_to(hanging.pids[0]) for group in status.select(jobs.find_groups(), str(os.getpid()))
    )


def test_a_stopped_rank_is_named(hanging: Ranks) -> None:
    os.kill(hanging.pids[2], signal.SIGSTOP)
    group = until(lambda group: group.ranks[2].process_state == "T", hanging.pids[0])
    (finding,) = status.findings(group)
    assert "is stopped" in finding and f"kill -CONT {hanging.pids[2]}" in finding
    assert "outside, stopped" in status.describe(group)
    os.kill(hanging.pids[2], signal.SIGCONT)


def be_refused() -> None:
    """All ranks refuse alike: the path that is forced needs shared memory."""
    collective_ops.init_hccl()
    with pytest.raises(collective_ops.InvalidArgumentError):
        collective_ops.allreduce(np.ones(1_000_000, np.float32))
    report("refused")
    signal.pause()


def test_a_rank_whose_call_was_refused_is_outside(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(be_refused, 2, env={"COLLECTIVE_OPS_PATH": "direct"})
    for number in range(2):
        assert ranks.receive(number) == "refused"
    group = job_of(ranks.pids[0])
    assert group is not None and [rank.activity for rank in group.ranks] == ["outside", "outside"]
    ranks.abort()


def wait_after_failure(victim: int) -> str:
    collective_ops.init_hccl()
    report("joined")
    if collective_ops.rank() == victim:
        signal.pause()
    try:
        collective_ops.barrier()
    except collective_ops.CollectiveError:
        report("failed")
        signal.pause()
    return ""


def test_a_killed_rank_is_named(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(wait_after_failure, 3, (1,))
    for rank in range(3):
        ranks.receive(rank)
    os.kill(ranks.pids[1], signal.SIGKILL)
    for rank in (0, 2):
        assert ranks.receive(rank) == "failed"
    group = job_of(ranks.pids[0])
    assert group is not None
    assert group.ranks[1].activity == "dead"
    assert group.failure_code == "peer_lost"
    assert status.state_of(group) == "broken"
    first, second = status.findings(group)
    assert first.startswith("The group is broken (peer_lost): ") and str(ranks.pids[1]) in first
    assert "ranks 0,2 of it still live" in first
    assert second.startswith(f"Died: rank 1 (process {ranks.pids[1]}, has made no call yet)")
    ranks.abort()
    assert job_of(ranks.pids[0]) is None


def test_ranks_that_have_not_all_come(tmp_path: Path) -> None:
    code = "import collective_ops; collective_ops.init_hccl()"
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "COLLECTIVE_OPS_JOB_ID": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as alone:
        try:
            group = until(lambda group: True, alone.pid)
            assert status.state_of(group) == "starting"
            assert str(alone.pid) in status.findings(group)[0]
            assert str(alone.pid) in status.overview([group])
            assert str(alone.pid) in status.describe(group)
        finally:
            alone.kill()


def test_no_job_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "no-such-job"]) == 1
    assert "no job or process 'no-such-job'" in capsys.readouterr().out
    assert cli.main(["status", "--json", "no-such-job"]) == 1
    assert json.loads(capsys.readouterr().out) == {"groups": []}


def test_watch_ends_with_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    naps = []

    def interrupted(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    assert cli.main(["status", "no-such-job", "--watch", "5"]) == 0
    assert naps == [5.0, 5.0]
    assert capsys.readouterr().out.count("no-such-job") == 2


def wait_in_a_message() -> None:
    collective_ops.init_hccl()
    if collective_ops.rank() == 0:
        collective_ops.recv(np.zeros(3, np.float32), 1, tag=4)
    else:
        report("there")
        while not os.path.exists(os.environ["TEST_SIGN"]):
            time.sleep(0.01)
        collective_ops.send(np.zeros(3, np.float32), 0, tag=4)


def test_a_rank_that_waits_in_a_message_is_told(rank_pool: RankPool, tmp_path: Path) -> None:
    sign = tmp_path / "told"
    ranks = rank_pool.start(wait_in_a_message, 2, env={"TEST_SIGN": str(sign)})
    ranks.receive(1)
    deadline, text = time.monotonic() + 30, ""
    while "waits in recv" not in text and time.monotonic() < deadline:
        found = status.select(jobs.find_groups(), str(ranks.pids[0]))
        text = "\n".join(map(status.describe, found))
    sign.touch()
    expected = f"Rank 0 waits in recv of 3 float32 (12 bytes), tag 4, from rank 1 (pid {ranks.pids[1]})."
    assert expected in text, text
    ranks.results(timeout=30)


def rank(number: int, activity: str, issued: int = 0, waits_for: int | None = None, **other: Any) -> Rank:
    given = {"pid": 100 + number, "call": "barrier", "process_state": "S"} | other
    finished = issued if activity == "outside" else issued - 1
    waited = None if waits_for is None else 2.0
    return Rank(
        number,
        given["pid"],
        activity,
        issued,
        finished,
        given["call"],
        waits_for,
        waited,
        given["process_state"],
    )


def group_of(*ranks: Rank) -> Group:
    return Group("1:2", "id j", list(ranks), processes=[Process(100, 100, "S", (7,))])


def test_the_cause_is_the_rank_that_does_not_wait_itself() -> None:
    group = group_of(
        rank(0, "waiting", 8, 1), rank(1, "waiting", 7, 2), rank(2, "outside", 6), rank(3, "busy", 7)
    )
    first, second = status.findings(group)
    assert first.startswith(
        "Rank 1 waits in call #7 (barrier), for 2.0 s, for rank 2, which finished call #6"
    )
    assert second.startswith("Rank 0 waits in call #8 (barrier)")
    assert "for rank 2, which finished" in second and "rank 3, which is in call #7" in second


def test_inside_of_one_call_the_chain_is_followed() -> None:
    group = group_of(
        rank(0, "waiting", 5, 1), rank(1, "waiting", 5, 2), rank(2, "busy", 5, process_state="R")
    )
    (finding,) = status.findings(group)
    assert finding.startswith("Ranks 0-1 wait in call #5")
    assert "for rank 2, which is in the same call (process 102, state R (running))" in finding


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (rank(1, "dead", 2, process_state=""), "which has died (process 101)"),
        (rank(1, "left", 2), "which has left the job"),
        (rank(1, "absent", 0, pid=0), "which has not joined yet"),
        (rank(1, "outside", 0), "which has made no call yet and is outside"),
    ],
)
def test_whoever_is_missing_is_described(missing: Rank, expected: str) -> None:
    group = group_of(rank(0, "waiting", 3, 1), missing)
    assert expected in status.findings(group)[-1]


def test_names_of_jobs_do_not_reach_the_terminal_raw() -> None:
    group = group_of(rank(0, "busy", 1))
    group.job = "id \x1b[2J"
    assert "\x1b" not in status.describe(group) + status.overview([group])


def test_a_group_of_another_build_is_shown_as_such() -> None:
    group = Group("1:2", "", problem="it has layout 2", processes=[Process(1, 1, "S", ())])
    assert status.state_of(group) == "unreadable"
    assert "layout 2" in status.describe(group)


# --- From trace files ------------------------------------------------------------------------------


def record_and_hang(victim: int) -> None:
    collective_ops.init_hccl()
    for _ in range(5):
        collective_ops.allreduce(np.ones(10, np.float32))
    if collective_ops.rank() != victim:
        collective_ops.broadcast(np.ones(10, np.float32), root=0 if victim else 1)
    report("done")
    signal.pause()


def test_the_last_calls_of_a_killed_job(rank_pool: RankPool, tmp_path: Path) -> None:
    ranks = rank_pool.start(record_and_hang, 3, (2,), env={"COLLECTIVE_OPS_TRACE": "1"}, cwd=tmp_path)
    for number in range(3):
        ranks.receive(number)
    for pid in ranks.pids:
        os.kill(pid, signal.SIGKILL)
    ranks.wait()

    printed = command("status", "--trace", str(tmp_path))
    assert printed.returncode == 0, printed.stderr
    lines = printed.stdout.splitlines()
    assert [line.split()[:5] for line in lines[2:5]] == [
        ["0", str(ranks.pids[0]), "killed", "#6", "broadcast"],
        ["1", str(ranks.pids[1]), "killed", "#6", "broadcast"],
        ["2", str(ranks.pids[2]), "killed", "#5", "all_reduce"],
    ]
    assert "Furthest behind: rank 2 with call #5, others reached #6." in printed.stdout
    assert "killed, or crashed): rank 0, 1, 2." in printed.stdout

    data = json.loads(command("status", "--json", "--trace", str(tmp_path), "--last", "3").stdout)
    assert [call["sequence"] for call in data["ranks"][0]["calls"]] == [4, 5, 6]
    assert data["ranks"][2]["calls"][-1]["collective"] == "all_reduce"
    now = time.time_ns()
    assert all(0 < now - call["ended_unix_ns"] < 600e9 for call in data["ranks"][0]["calls"])


def record_once() -> None:
    collective_ops.init_hccl()
    collective_ops.barrier()
    report("done")
    signal.pause()


def test_one_job_of_several_is_shown(rank_pool: RankPool, tmp_path: Path) -> None:
    for name in ("first", "second"):
        environment = {"COLLECTIVE_OPS_TRACE": "1", "COLLECTIVE_OPS_JOB_ID": name}
        ranks = rank_pool.start(record_once, 2, env=environment, cwd=tmp_path)
        for number in range(2):
            ranks.receive(number)
        for pid in ranks.pids:
            os.kill(pid, signal.SIGKILL)
        ranks.wait()
    printed = command("status", "--trace", str(tmp_path)).stdout
    assert printed.startswith("job 'second': 2 ranks")
    assert "Files of another job lie there too: collective-ops status 'first' --trace DIR." in printed
    for wanted in ("first", "id first"):
        printed = command("status", wanted, "--trace", str(tmp_path)).stdout
        assert printed.startswith("job 'first': 2 ranks") and "another job" not in printed


def test_a_folder_without_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "comm_trace.0123456789abcdef.rank0.bin").write_bytes(b"damaged" * 1000)
    assert cli.main(["status", "--trace", str(tmp_path)]) == 1
    assert "no rank's trace file to read" in capsys.readouterr().err


def test_jobs_are_named_as_their_users_know_them() -> None:
    assert status.short_name("id my-job") == "my-job"
    assert status.short_name("user 0 under process 17 started at 4711") == "under process 17"
    one, other = group_of(rank(0, "busy", 7)), group_of(rank(0, "busy", 7))
    other.job = "user 0 under process 17 started at 4711"
    text = status.overview([one, other])
    assert "under process 17 " in text and "4711" not in text and "are called" not in text
    assert status.select([one, other], "under process 17") == [other]
    assert status.select([one, other], "j") == status.select([one, other], "id j") == [one]
    text = status.overview([one, copy.copy(one)])
    assert "2 jobs are called 'j': name one of them by a PID." in text
