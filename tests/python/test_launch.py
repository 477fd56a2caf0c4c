"""`collective-ops run`: real processes, small programs that need no PyTorch and no core in the ranks."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import collective_ops
import pytest
from collective_ops import _watch, binding, launch

PACKAGE_PARENT = str(Path(collective_ops.__path__[0]).parent)
LAUNCH_SECONDS = 120


def clean_environment(**more: str) -> dict[str, str]:
    dropped = (
        "DEVICE_IDS",
        "RANK",
        "WORLD_SIZE",
        "OMP_NUM_THREADS",
        "COLLECTIVE_OPS_TRACE",
        "HCCL_CONNECT_TIMEOUT",
    )
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = os.pathsep.join([PACKAGE_PARENT, *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": path} | more


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "collective_ops.cli", "run", *arguments]


def run(cwd: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_line(*arguments),
        cwd=cwd,
        env=clean_environment(**environ),
        capture_output=True,
        text=True,
        timeout=LAUNCH_SECONDS,
    )


def script(directory: Path, text: str) -> str:
    (directory / "train.py").write_text(
        "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + text
    )
    return "train.py"


def plan_of(*arguments: str, **environ: str) -> launch.LaunchPlan:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    launch.add_arguments(parser)
    return launch.make_plan(parser.parse_args(arguments), environ)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# ---- what is decided before a process starts


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nproc_per_node", "4"],
        ["--nproc_per_node=4"],
        ["--nproc-per-node", "4"],
        ["--nproc", "4"],
        ["--local_worker_num", "4"],
        [
            "--worker_num=4",
            "--local_worker_num=4",
            "--join=True",
            "--master_port=8118",
            "--cluster_time_out=60",
        ],
        ["--standalone", "--nnodes", "1", "--nproc-per-node", "4"],
    ],
)
def test_spellings_of_the_number_of_ranks(arguments: list[str]) -> None:
    plan = plan_of(*arguments, "python", "-c", "pass")
    assert plan.world_size == 4
    assert plan.device_ids == [0, 1, 2, 3]
    assert plan.command == [sys.executable, "-c", "pass"]


def test_a_module_runs_as_python_runs_it() -> None:
    plan = plan_of("--nproc", "2", "-m", "package.train", "-m", "3")
    assert plan.command == [sys.executable, "-m", "package.train", "-m", "3"]


def test_the_job_has_the_name_that_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of("--nproc", "2", "true", COLLECTIVE_OPS_JOB_ID="../my job")
    assert plan.job_id == plan.environment["COLLECTIVE_OPS_JOB_ID"] == "../my job"
    assert plan.log_dir == tmp_path / "runs" / "_my_job"
    plan.log_dir.mkdir(parents=True)
    again = plan_of("--nproc", "2", "true", COLLECTIVE_OPS_JOB_ID="../my job")
    assert again.log_dir.name.startswith("_my_job-") and again.log_dir.parent == plan.log_dir.parent
    # A rank of that job that starts another one.
    assert plan_of("--nproc", "2", "true", COLLECTIVE_OPS_JOB_ID="a", RANK="0").job_id != "a"


def test_ranks_of_one_of_several_hosts() -> None:
    words = ["--master_addr", "node1", "--node_rank", "1", "true"]
    for counts in (
        ["--nnodes", "3", "--nproc_per_node", "2"],
        ["--worker_num", "6", "--local_worker_num", "2"],
    ):
        plan = plan_of(*counts, *words, DEVICE_IDS="4,5")
        assert (plan.world_size, list(plan.ranks), plan.device_ids, plan.shown) == (6, [2, 3], [4, 5], [])
        assert (plan.master_addr, plan.master_port, plan.job_id) == ("node1", 29500, "node1-29500")
        assert "COLLECTIVE_OPS_SECRET" not in plan.environment  # it must be the same on all hosts
        lines = launch.describe(plan).splitlines()
        assert (
            lines[0].startswith("2 of 6 ranks") and "RANK=2 LOCAL_RANK=0 WORLD_SIZE=6 DEVICE_ID=4" in lines[1]
        )


def test_device_ids_give_number_and_devices() -> None:
    assert plan_of("true", DEVICE_IDS="4,5,6,7").device_ids == [4, 5, 6, 7]
    assert plan_of("true", DEVICE_IDS=" 4 5 ").device_ids == [4, 5]
    assert plan_of("--nproc_per_node", "2", "true", DEVICE_IDS="4,5,6,7").device_ids == [4, 5]


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (["true"], {}, "how many ranks"),
        (["--nproc_per_node", "2"], {}, "what shall the ranks run"),
        (["--nproc_per_node", "2", "absent.py"], {}, "no file absent.py"),
        (["--nproc_per_node", "3", "true"], {"DEVICE_IDS": "0,1"}, "names 2 devices"),
        (["true"], {"DEVICE_IDS": "0,1,1"}, "twice"),
        (["true"], {"DEVICE_IDS": "0,one"}, "expected numbers"),
        (["--worker_num", "16", "--local_worker_num", "8", "true"], {}, "which of the 2 hosts"),
        (["--worker_num", "16", "--nproc_per_node", "8", "true"], {}, "differ"),
        (["--worker_num", "9", "--local_worker_num", "4", "true"], {}, "a multiple"),
        (["--nnodes", "2", "--node_rank", "2", "--nproc_per_node", "2", "true"], {}, "0 to 1"),
        (["--nnodes", "2", "--node_rank", "1", "--nproc_per_node", "2", "true"], {}, "where is node 0"),
        (["--nproc_per_node", "2", "--node_rank", "1", "true"], {}, "one host"),
        (["--nproc_per_node", "2", "--show", "2", "true"], {}, "the last rank is 1"),
        (["--nproc_per_node", "2", "--show", "some", "true"], {}, "expected all, none"),
    ],
)
def test_what_cannot_be_meant_is_explained(
    arguments: list[str], environ: dict[str, str], expected: str
) -> None:
    with pytest.raises(launch.UsageError, match=expected):
        plan_of(*arguments, **environ)


def test_threads_and_timeouts_are_set_where_the_user_has_not() -> None:
    cores = len(os.sched_getaffinity(0))
    plan = plan_of("--nproc_per_node", "1", "--cluster_time_out", "77", "true")
    assert plan.environment["OMP_NUM_THREADS"] == str(cores)
    assert plan.environment["HCCL_CONNECT_TIMEOUT"] == "77"
    assert plan_of("--nproc_per_node", "64", "true").environment["OMP_NUM_THREADS"] == str(
        max(1, cores // 64)
    )
    kept = plan_of("--nproc_per_node", "2", "true", OMP_NUM_THREADS="5", HCCL_CONNECT_TIMEOUT="9")
    assert not {"OMP_NUM_THREADS", "HCCL_CONNECT_TIMEOUT"} & kept.environment.keys()


def test_every_launch_is_another_job() -> None:
    assert len({plan_of("--nproc_per_node", "2", "true").job_id for _ in range(100)}) == 100


def test_dry_run_starts_nothing(tmp_path: Path) -> None:
    script(tmp_path, "open('started', 'w')")
    done = run(tmp_path, "--dry-run", "train.py", "--lr", "0.1", DEVICE_IDS="6,7")
    assert done.returncode == 0
    first, second = done.stdout.splitlines()[1:]
    assert first.startswith("rank 0: RANK=0 ") and "DEVICE_ID=6" in first and "WORLD_SIZE=2" in first
    assert (
        second.startswith("rank 1: RANK=1 ")
        and "DEVICE_ID=7" in second
        and second.endswith("train.py --lr 0.1")
    )
    assert sorted(os.listdir(tmp_path)) == ["train.py"]


# ---- which rank failed first


def states(**ranks: tuple[float, int]) -> dict[int, _watch.RankState]:
    return {
        int(name[1:]): _watch.RankState(pid=1, ended=ended, exit_code=code)
        for name, (ended, code) in ranks.items()
    }


@pytest.mark.parametrize(
    ("ranks", "texts", "expected"),
    [
        (states(r0=(2.0, 1), r1=(1.0, 1)), {}, 1),
        (states(r0=(1.0, 1), r1=(1.1, 1)), {0: b"RuntimeError: peer_lost: rank 1 has gone"}, 1),
        (states(r0=(1.0, 1), r1=(1.1, 1)), {0: b"PeerLostError", 1: b"group_broken"}, 0),
        (states(r0=(1.2, -signal.SIGTERM), r1=(1.1, 3)), {}, 1),
        (states(r0=(1.2, 1), r1=(1.1, -signal.SIGKILL)), {0: b"peer_lost"}, 1),
        (states(r0=(1.0, 1), r1=(1.1, -signal.SIGTERM)), {0: b"peer_lost"}, 0),
        (states(r0=(1.0, 0), r1=(1.1, 0)), {}, None),
    ],
)
def test_first_failure(tmp_path: Path, ranks: dict, texts: dict[int, bytes], expected: int | None) -> None:
    logs = {rank: tmp_path / f"{rank}.log" for rank in ranks}
    for rank, text in texts.items():
        logs[rank].write_bytes(text)
    assert _watch.first_failure(ranks, logs) == expected


def test_last_lines_begin_at_the_first_traceback_of_a_chain(tmp_path: Path) -> None:
    chain = (
        b"Traceback (most recent call last):\nA\n\nDuring handling of the above exception, another exception "
        b"occurred:\n\nTraceback (most recent call last):\nB"
    )
    log = tmp_path / "log"
    log.write_bytes(b"Traceback (most recent call last):\nan old one, caught\nstep 7\n" + chain + b"\n")
    assert _watch.last_lines(log) == chain
    log.write_bytes(b"\n".join(b"line %d" % number for number in range(1000)))
    assert _watch.last_lines(log).splitlines()[-1] == b"line 999"
    assert len(_watch.last_lines(log).splitlines()) < 100


@pytest.mark.parametrize(
    "ranks, cores, expected",
    [
        (2, [[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (3, [[0], [1], [2], [3]], [[0], [1], [2, 3]]),
        (4, [[0], [1]], [[0], [0], [1], [1]]),
        (1, [[3]], [[3]]),
    ],
)
def test_ranks_share_the_cores(ranks: int, cores: list[list[int]], expected: list[list[int]]) -> None:
    assert binding.cores_of_ranks(ranks, cores) == expected


def test_neighbouring_cores_stand_beside_each_other(tmp_path: Path) -> None:
    for cpu in range(8):  # two sockets, by turns; cpus 4 to 7 are second threads
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{cpu % 2}\n")
        (folder / "core_id").write_text(f"{cpu % 4 // 2}\n")
    assert binding.usable_cores(range(7), tmp_path) == [[0, 4], [2, 6], [1, 5], [3]]
    assert binding.usable_cores([9], tmp_path) == [[9]]  # of which nothing is known


def test_binding_by_device_and_its_one_warning() -> None:
    wanted = binding.parse_bind_core('{"device4": ["0-1"], "device5": ["2", "9"], "device6": ["8"]}')
    cpus, warning = binding.plan_binding(wanted, [4, 5, 6, 7], [[0], [1], [2], [3]])
    assert cpus == [[0, 1], [2], [], []]
    assert warning == "--bind_core: cpu 8, 9 may not be used here; rank 2, 3 is not bound"
    cpus, warning = binding.plan_binding(True, [0, 1, 2], [[0], [1]])
    assert warning == "--bind_core: 3 ranks share the 2 cores that may be used"
    assert binding.plan_binding(False, [0, 1], [[0]]) == ([[], []], "")


@pytest.mark.parametrize(
    "text", ["yes", "{}", '{"device0": []}', '{"card0": ["1"]}', '["0"]', '{"device0": ["a"]}']
)
def test_a_binding_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(ValueError, match="expected True, False, or cpus by device"):
        binding.parse_bind_core(text)


def test_forbidden_binding_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbidden(*_given: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    assert plan_of("--bind_core", "True", "--nproc_per_node", "2", "true").cpus == [[], []]
    warning = "collective-ops run: --bind_core: not allowed here (Operation not permitted)\n"
    assert capsys.readouterr().err == warning


# ---- real launches


def test_ranks_get_their_environment_and_logs(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "DEVICE_ID", "COLLECTIVE_OPS_JOB_ID")
print(*(os.environ[name] for name in names), sys.argv[1:])
print("to stderr", file=sys.stderr)
""",
    )
    done = run(tmp_path, "--json", "out.json", name, "--text", "a $$ ${local_rank} b", DEVICE_IDS="5,3,4")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out.json").read_text())
    assert [row["exit_code"] for row in summary["ranks"]] == [0, 0, 0]
    for rank, device in enumerate((5, 3, 4)):
        words = Path(summary["ranks"][rank]["log"]).read_text().splitlines()
        expected = f"{rank} {rank} 3 {device} {summary['job_id']} ['--text', 'a $$ ${{local_rank}} b']"
        assert words == [expected, "to stderr"]
    assert done.stdout.count("to stderr") == 1 and done.stdout.startswith("0 0 3 5 ")
    assert done.stderr == ""


def test_ranks_run_on_their_cores(tmp_path: Path) -> None:
    name = script(tmp_path, "print(sorted(os.sched_getaffinity(0)))\n")
    done = run(tmp_path, "--bind_core=True", "--log_dir", "logs", "--nproc_per_node", "2", name)
    assert done.returncode == 0, done.stderr
    expected = binding.cores_of_ranks(2, binding.usable_cores())
    for rank in range(2):
        assert (tmp_path / f"logs/rank_{rank}.log").read_text() == f"{expected[rank]}\n"


def test_all_ranks_can_be_shown(tmp_path: Path) -> None:
    name = script(tmp_path, "print('greetings')")
    done = run(tmp_path, "--nproc_per_node", "3", "--show", "all", "--log_dir", "logs", name)
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] greetings" for rank in range(3)]
    assert sorted(os.listdir(tmp_path / "logs")) == [f"rank_{rank}.log" for rank in range(3)]


def test_the_first_failing_rank_is_shown_alone(tmp_path: Path) -> None:
    # Rank 0 fails because of rank 2, and may well be done with it sooner.
    name = script(
        tmp_path,
        """
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.01)
if rank == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that it gets to say what the launcher must not show
    open("ready", "w").close()
    wait_for("failing")
    raise RuntimeError("peer_lost: rank 2 has gone")
if rank == 1: time.sleep(100)
wait_for("ready")
open("failing", "w").close()
raise ValueError("a bad batch")
""",
    )
    done = run(tmp_path, "--nproc_per_node", "3", "--json", "out.json", name)
    assert done.returncode == 1
    assert "rank 2 of 3 failed with exit code 1" in done.stderr.splitlines()[0]
    assert "ValueError: a bad batch" in done.stderr
    assert "peer_lost" not in done.stdout + done.stderr
    assert "torch" not in done.stderr and done.stderr.count("Traceback") == 1
    summary = json.loads((tmp_path / "out.json").read_text())
    assert summary["first_failing_rank"] == 2
    assert "peer_lost" in Path(summary["ranks"][0]["log"]).read_text()


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("sys.exit(41)", 41, "exit code 41; it printed nothing"),
        ("sys.exit('no such data')", 1, "the last it printed:\nno such data\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "ended by SIGKILL"),
        ("os.abort()", 134, "ended by SIGABRT"),
    ],
)
def test_exit_code_is_that_of_the_first_failing_rank(
    tmp_path: Path, text: str, code: int, expected: str
) -> None:
    name = script(tmp_path, f"if rank == 1: {text}\ntime.sleep(100)\n")
    done = run(tmp_path, "--nproc_per_node", "2", name)
    assert done.returncode == code
    assert f"rank 1 of 2 {'was' if code > 128 else 'failed'}" in done.stderr and expected in done.stderr


def test_a_rank_that_left_without_an_error_is_mentioned(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
if rank == 1: sys.exit(0)
while not os.path.exists("go"): time.sleep(0.01)
raise RuntimeError("peer_lost: rank 1 has gone")
""",
    )
    arguments = command_line("--nproc_per_node", "2", "--log_dir", "logs", name)
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE, text=True
    ) as job:
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
        assert wait_until(lambda: (tmp_path / "logs" / "rank_1.log").exists())
        assert wait_until(lambda: len(children.read_text().split()) == 1)  # rank 1 has ended and was reaped
        (tmp_path / "go").touch()
        errors = job.communicate(timeout=LAUNCH_SECONDS)[1]
    assert "rank 1 ended without an error" in errors


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    done = run(tmp_path, "--nproc_per_node", "2", "no-such-program")
    assert done.returncode == 127
    assert "cannot start no-such-program: No such file" in done.stdout + done.stderr  # of either rank


def test_the_trace_of_a_killed_job_is_merged(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
from collective_ops import allreduce, init_hccl
init_hccl()
numbers = memoryview(bytearray(4000)).cast("f")
for _ in range(7): allreduce(numbers)
if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
allreduce(numbers)
""",
    )
    done = run(tmp_path, "--nproc_per_node", "3", name, COLLECTIVE_OPS_TRACE="1")
    assert done.returncode == 137
    assert "rank 1 of 3 was ended by SIGKILL" in done.stderr
    assert "merged into comm_trace.json" in done.stderr
    events = json.loads((tmp_path / "comm_trace.json").read_text())["traceEvents"]
    assert sum("all_reduce" in event.get("name", "") for event in events) >= 3 * 7


def test_a_lost_peer_is_no_first_failure(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
from collective_ops import allreduce, init_hccl
init_hccl()
numbers = memoryview(bytearray(4000)).cast("f")
allreduce(numbers)
if rank == 2: raise ValueError("a bad batch")
allreduce(numbers)
""",
    )
    done = run(tmp_path, "--nproc_per_node", "3", name)
    assert done.returncode == 1
    assert "rank 2 of 3 failed with exit code 1" in done.stderr and "ValueError: a bad batch" in done.stderr
    assert "PeerLostError" not in done.stdout + done.stderr


STUBBORN = """
import subprocess
child = subprocess.Popen(["sleep", "1000"])
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
with open(f"pids_{rank}.part", "w") as file: print(os.getpid(), child.pid, file=file)
os.rename(f"pids_{rank}.part", f"pids_{rank}")
if rank == 1 and os.path.exists("fail"):
    while not os.path.exists("pids_0"): time.sleep(0.01)
    sys.exit(9)
time.sleep(1000)
"""


def written_pids(directory: Path) -> list[int]:
    return [int(word) for rank in (0, 1) for word in (directory / f"pids_{rank}").read_text().split()]


def test_what_was_shown_is_not_repeated(tmp_path: Path) -> None:
    name = script(tmp_path, "print('accuracy too low')\nif rank == 0: sys.exit(1)\n")
    done = run(tmp_path, "--nproc_per_node", "2", name)
    assert done.returncode == 1
    assert done.stdout == "accuracy too low\n"
    assert "rank 0 of 2 failed with exit code 1; its output is above" in done.stderr
    assert "accuracy" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    name = script(tmp_path, STUBBORN)
    arguments = command_line("--nproc_per_node", "2", name)
    with subprocess.Popen(
        arguments, cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE, text=True
    ) as job:
        assert wait_until(lambda: all((tmp_path / f"pids_{rank}").exists() for rank in (0, 1)))
        pids = written_pids(tmp_path)
        job.send_signal(number)
        errors = job.communicate(timeout=LAUNCH_SECONDS)[1]
    if (
        number == signal.SIGKILL
    ):  # nobody is left to end what a rank has started; the ranks themselves must go
        for pid in pids[1::2]:
            os.kill(pid, signal.SIGKILL)
    else:
        assert job.returncode == 128 + number
        assert f"stopped by {number.name}" in errors and "Traceback" not in errors
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_failure_leaves_no_process_either(tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    done = run(tmp_path, "--nproc_per_node", "2", script(tmp_path, STUBBORN))
    assert done.returncode == 9
    assert wait_until(lambda: not any(is_alive(pid) for pid in written_pids(tmp_path)))


def test_two_launches_at_once_do_not_meet(tmp_path: Path) -> None:
    jobs = []
    for name in "ab":
        (tmp_path / name).mkdir()
        text = (
            "print(os.environ['COLLECTIVE_OPS_JOB_ID'], os.environ['MASTER_PORT'], os.environ['WORLD_SIZE'])"
        )
        arguments = command_line("--nproc_per_node", "2", "--show", "all", script(tmp_path / name, text))
        jobs.append(
            subprocess.Popen(
                arguments, cwd=tmp_path / name, env=clean_environment(), stdout=subprocess.PIPE, text=True
            )
        )
    printed = [
        set(job.communicate(timeout=LAUNCH_SECONDS)[0].replace("[rank 1]", "[rank 0]").splitlines())
        for job in jobs
    ]
    assert [len(lines) for lines in printed] == [1, 1]  # both ranks of a job say the same
    assert not printed[0] & printed[1]


def test_help_teaches() -> None:
    done = run(Path.cwd(), "--help")
    assert done.returncode == 0
    for word in (
        "collective-ops run --nproc_per_node 8",
        "DEVICE_IDS=",
        "--worker_num",
        "rank_K.log",
        "--dry-run",
    ):
        assert word in done.stdout
