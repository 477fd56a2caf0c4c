"""What users do by mistake: training goes on, the reason is told once, and nobody else's profile suffers.

Faults that users met in other profilers, and the tests of ours (in test_profiler_*.py) that hold them off:

| fault | test |
|---|---|
| nanoseconds lose their leading zeros | exports: test_times_are_exact_to_the_nanosecond |
| times as text, ids and times that a double cannot hold | files: test_the_trace_is_sound |
| threads with 64-bit ids fall together, thread 0 | exports: test_threads_with_large_numbers_* |
| -1 among ranks, ranks beyond the job, empty, twice | arguments: test_ranks_* |
| not every output keeps to the selected ranks | files: test_ranks_that_are_not_selected_write_nothing |
| the loop ends early | files: test_a_loop_that_* |
| an exception inside of the range | files: test_an_error_of_the_program_passes_and_leaves_the_step |
| a target is missing, cannot be written, is full | arguments: test_a_path_that_*; test_the_disk_is_full |
| blanks, CJK, "/" in names | files: test_odd_paths_and_worker_names |
| arrows to kernels leave their thread | exports: test_links_of_*; files: test_the_trace_is_sound |
| quotes and log lines break the trace | exports: test_odd_names_stay_whole_and_the_trace_valid |
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from collective_ops.profiler import ProfileConfig, profile

torch = pytest.importorskip("torch")

from collective_ops import cli  # noqa: E402
from collective_ops.profiler import runs  # noqa: E402
from profiled_runs import record, table  # noqa: E402
from rank_pool import RankPool, report  # noqa: E402

LEVELS = pytest.mark.parametrize("level", ["level0", "level1"])
ONCE = "torch.profiler records already"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def config(directory: Path, level: str = "level1", end: int = 3) -> ProfileConfig:
    return ProfileConfig(
        enable_profiling=True, profiling_dir=str(directory), step_start=1, step_end=end, level=level
    )


def train() -> None:
    torch.ones(8, 8).mm(torch.ones(8, 8))


def steps_of(directory: Path | None) -> list[str]:
    assert directory is not None
    return [row["Step"] for row in table(directory, "step_trace_time.csv")]


def test_step_is_never_called(tmp_path: Path, caplog: Any) -> None:
    with profile(config(tmp_path)):
        train()
    assert "nothing was recorded: the loop made no step, and --profile-step-start is 1" in caplog.text


def test_one_profile_in_another(tmp_path: Path, caplog: Any) -> None:
    with profile(config(tmp_path / "a")) as outer, profile(config(tmp_path / "b")) as inner:
        for _ in range(4):
            train()
            outer.step()
            inner.step()
    assert outer.recorded == [1, 2] and outer.failure == "" and steps_of(outer.directory) == ["1", "2"]
    assert inner.recorded == [] and ONCE in inner.failure and caplog.text.count(ONCE) == 1


def test_torch_profiler_is_on_already(tmp_path: Path, caplog: Any) -> None:
    """The user's own one keeps its events."""
    with torch.profiler.profile() as own, profile(config(tmp_path)) as profiler:
        for _ in range(4):
            train()
            profiler.step()
    assert profiler.recorded == [] and ONCE in profiler.failure and caplog.text.count(ONCE) == 1
    assert sum(event.name == "aten::mm" for event in own.events()) == 4


@LEVELS
def test_steps_in_threads_that_come_and_go(tmp_path: Path, level: str) -> None:
    if level == "level0":
        pytest.importorskip("collective_ops_torch._native")

    def one(profiler: Any) -> None:
        train()
        profiler.step()

    with profile(config(tmp_path, level)) as profiler:
        for _ in range(4):
            thread = threading.Thread(target=one, args=(profiler,))
            thread.start()
            thread.join()
    if level == "level0":
        assert profiler.failure == "" and steps_of(profiler.directory) == ["1", "2"]
    else:
        assert profiler.recorded == [] and "in another thread" in profiler.failure
    with torch.profiler.profile():  # nothing of ours is left open
        train()


def test_the_step_of_another_thread_ends_recording(tmp_path: Path) -> None:
    with profile(config(tmp_path, end=9)) as profiler:
        for number in range(4):
            train()
            if number == 2:
                thread = threading.Thread(target=profiler.step)
                thread.start()
                thread.join()
            else:
                profiler.step()
    assert profiler.recorded == [1] and "in another thread" in profiler.failure
    assert steps_of(profiler.directory) == ["1"]
    with torch.profiler.profile():
        train()


@LEVELS
def test_a_forked_process_does_not_record(tmp_path: Path, level: str) -> None:
    with profile(config(tmp_path, level)) as profiler:
        train()
        profiler.step()
        child = os.fork()
        if child == 0:
            try:
                for _ in range(3):
                    profiler.step()
                profiler.__exit__(None, None, None)
                os._exit(7 if profiler.recorded or profiler.failure else 0)
            finally:
                os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for _ in range(3):
            train()
            profiler.step()
    assert profiler.failure == "" and steps_of(profiler.directory) == ["1", "2"]


@LEVELS
def test_workers_of_a_loader(tmp_path: Path, level: str) -> None:
    data = torch.utils.data.TensorDataset(torch.ones(16, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
    with profile(config(tmp_path, level)) as profiler:
        for _ in loader:
            train()
            profiler.step()
    assert profiler.failure == "" and steps_of(profiler.directory) == ["1", "2"]
    assert len(list((tmp_path / "0").iterdir())) == 1


@LEVELS
def test_the_folder_is_removed_meanwhile(tmp_path: Path, level: str, caplog: Any) -> None:
    done = []
    with profile(config(tmp_path / "p", level, end=5)) as profiler:
        for number in range(6):
            train()
            profiler.step()
            done.append(number)
            if number == 1:
                shutil.rmtree(tmp_path / "p")
    assert done == list(range(6)) and profiler.recorded == [1]
    assert "No such file or directory" in profiler.failure
    assert caplog.text.count("nothing more is recorded, training goes on") == 1


def test_steps_behind_the_end_change_nothing(tmp_path: Path) -> None:
    with profile(config(tmp_path)) as profiler:
        for _ in range(5):
            train()
            profiler.step()
    profiler.step()
    assert profiler.recorded == [1, 2] and profiler.failure == ""


@LEVELS
def test_the_disk_is_full(tmp_path: Path, level: str, caplog: Any) -> None:
    """What was recorded stays whole; the step that found no room is not half there."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        done = []
        with profile(config(disk / "p", level, end=50)) as profiler:
            for number in range(50):
                train()
                profiler.step()
                done.append(number)
                if number == 2:
                    with contextlib.suppress(OSError), (disk / "filler").open("wb") as filler:
                        filler.write(bytes(256 << 10))
        assert done == list(range(50)) and 1 <= len(profiler.recorded) < 49
        assert profiler.failure and caplog.text.count("nothing more is recorded, training goes on") == 1
        raw = profiler.directory / "FRAMEWORK"
        for number in profiler.recorded:
            content = json.loads((raw / f"calls_{number}.json").read_text())
            assert content["step"] == number
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def record_until_killed(directory: str) -> Any:
    """Rank 1 is killed in its third recorded step, before its calls."""

    def work(step: int) -> None:
        if step == 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    return record(directory, ["--profile-step-start", "1", "--profile-step-end", "9"], 9, work)


def test_a_rank_is_killed_inside_of_the_range(rank_pool: RankPool, tmp_path: Path, capsys: Any) -> None:
    """The other one's error passes, and both have left their whole steps."""
    outcomes = rank_pool.start(record_until_killed, 2, (str(tmp_path),)).wait(timeout=60)
    assert outcomes[1].exit_code == -signal.SIGKILL and "rank 1" in str(outcomes[0].error)
    (first,), (second,) = (list((tmp_path / str(rank)).iterdir()) for rank in (0, 1))
    assert steps_of(first)[:2] == ["1", "2"]
    assert not (second / "analyse.done").exists()
    assert cli.main(["profile", "parse", "-d", str(second)]) == 0
    assert steps_of(second) == ["1", "2"]
    assert f"rank 1: {second}" in capsys.readouterr().out


def record_beside(directory: str) -> Any:
    report("ready")
    return record(directory, ["--profile-step-start", "1", "--profile-step-end", "5"], 6)


def test_two_jobs_at_once_with_one_path(rank_pool: RankPool, tmp_path: Path) -> None:
    """Each has an id; no directory holds what both wrote, and each run's profiles are complete."""
    jobs = [rank_pool.start(record_beside, 2, (str(tmp_path),)) for _ in range(2)]
    told = [[outcome.value for outcome in job.wait(timeout=90)] for job in jobs]
    for job in told:
        assert [one["failure"] for one in job] == ["", ""]
    found = runs.find_profiles(tmp_path)
    by_run = {run: sorted(p.rank for p in found if p.run == run) for run in {p.run for p in found}}
    assert list(by_run.values()) == [[0, 1], [0, 1]]
    assert len({one["directory"] for job in told for one in job}) == 4
    for one in (one for job in told for one in job):
        assert steps_of(one["directory"]) == ["1", "2", "3", "4"]
