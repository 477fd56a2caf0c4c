"""Jobs whose ranks are on several hosts: what they compute, and what they say when something goes wrong."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import network_hosts
import pytest
from network_hosts import NetworkHosts, RankEnd

if reason := network_hosts.unsupported():
    pytest.skip(reason, allow_module_level=True)

PYTHON = str(Path(__file__).resolve().parent.parent.parent / "python")
START = """
import os, signal, sys, time
import numpy as np
import collective_ops as ops
ops.init_hccl()
rank, world = ops.rank(), ops.world_size()
"""


def run(
    program: str, hosts: int = 2, ranks: int = 2, env: dict[str, str] | None = None, **network: Any
) -> list[RankEnd]:
    variables = {"COLLECTIVE_OPS_SECRET": "a secret of sixteen letters", "PYTHONPATH": PYTHON, **(env or {})}
    with NetworkHosts(hosts, **network) as job:
        return job.run_ranks([sys.executable, "-c", START + program], ranks, env=variables, timeout=60)


def outputs(ends: list[RankEnd]) -> list[str]:
    for end in ends:
        assert end.exit_code == 0, f"rank {end.rank}: {end.output}"
    return [end.output.strip() for end in ends]


COLLECTIVES = """
for count in (1, 1000, 300_001):
    mine = np.arange(count, dtype=np.float32) % 13 + rank
    total = sum((np.arange(count, dtype=np.float32) % 13 + r) for r in range(world))
    data = mine.copy(); ops.allreduce(data); assert (data == total).all()
    ops.allreduce(mine.copy(), op="avg")
    data = mine.copy(); ops.broadcast(data, src=world - 1)
    assert (data == np.arange(count, dtype=np.float32) % 13 + world - 1).all()
    whole = np.empty(count * world, np.float32); ops.allgather(mine, whole)
    for r in range(world):
        assert (whole[r * count:(r + 1) * count] == np.arange(count, dtype=np.float32) % 13 + r).all()
    part = np.empty(count, np.float32); ops.reducescatter(whole, out=part)
    assert (part == world * (np.arange(count, dtype=np.float32) % 13 + rank)).all()
    got = np.empty(count * world, np.float32); ops.alltoall(got, whole)
    for r in range(world):
        assert (got[r * count:(r + 1) * count] == np.arange(count, dtype=np.float32) % 13 + rank).all()
    other = np.empty(count, np.float32)
    work = ops.isend(mine, (rank + 1) % world); ops.recv(other, (rank - 1) % world); work.wait()
    assert (other == np.arange(count, dtype=np.float32) % 13 + (rank - 1) % world).all()
ops.barrier()
halves = ops.new_group(list(range(rank % 2, world, 2)))
data = np.ones(10, np.float32); halves.allreduce(data); assert (data == world // 2).all()
ops.finalize()
print("good")
"""


@pytest.mark.parametrize(("hosts", "ranks"), [(2, 1), (2, 2), (3, 2)])
def test_all_collectives(hosts: int, ranks: int) -> None:
    assert outputs(run(COLLECTIVES, hosts, ranks)) == ["good"] * hosts * ranks


def test_a_sender_in_another_call_still_sends() -> None:
    # A send is done when its bytes have left the caller's memory: maybe before the socket has taken them.
    program = """
    data = np.zeros(700_001, np.float32)
    for turn in range(30):
        if rank == 0:
            ops.isend(np.full(700_001, turn, np.float32), 1).wait()
        else:
            ops.recv(data, 0); assert (data == turn).all()
        ops.barrier()
    ops.finalize()
    print("good")
    """
    assert outputs(run(program.replace("\n    ", "\n"), ranks=1)) == ["good"] * 2


def test_hosts_with_ipv6_alone() -> None:
    assert outputs(run(COLLECTIVES, family="ipv6")) == ["good"] * 4


@pytest.mark.skipif(not os.access("/dev/net/tun", os.R_OK | os.W_OK), reason="no /dev/net/tun")
def test_hosts_far_apart() -> None:
    # More is on its way than sockets between near hosts hold.
    assert outputs(run(COLLECTIVES, rate="1gbit", delay_us=2000)) == ["good"] * 4


def test_strict_sums_have_the_bits_of_one_host() -> None:
    pytest.importorskip("torch")
    program = """
    import hashlib, torch
    digest = hashlib.sha256()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for count in (8, 70_000, 1_500_000):
            data = (1 / (3 + 7 * rank + torch.arange(count) % 101)).to(dtype)
            part = torch.empty(count // world, dtype=dtype)
            ops.reducescatter(data, "avg", part)
            parts = torch.empty(count // world * world, dtype=dtype)
            ops.allgather(part, parts)
            ops.allreduce(data)
            for result in (parts, data):
                digest.update(result.view(torch.uint8).numpy().tobytes())
    print(digest.hexdigest())
    """.replace("\n    ", "\n")
    strict = {"HCCL_DETERMINISTIC": "strict"}
    found = {
        end
        for hosts, ranks in ((1, 4), (2, 2), (4, 1))
        for end in outputs(run(program, hosts, ranks, strict))
    }
    assert len(found) == 1


TRACED = """
for _ in range(3): ops.allreduce(np.ones(1000, np.float32))
first_host = os.environ["RANK"] in ("0", "1")
marks = os.environ["MARKS"]
while not first_host and len([name for name in os.listdir(marks) if name.startswith("left")]) < 2:
    time.sleep(0.01)
ops.finalize()
open(f"{marks}/left{rank}", "w").close()
"""


def test_the_last_host_merges_the_trace(tmp_path: Path) -> None:
    marks, traces = tmp_path / "marks", tmp_path / "traces"
    marks.mkdir(), traces.mkdir()
    env = {"COLLECTIVE_OPS_TRACE": "1", "COLLECTIVE_OPS_TRACE_DIR": str(traces), "MARKS": str(marks)}
    assert outputs(run(TRACED, env=env)) == [""] * 4
    assert [path.name for path in traces.iterdir()] == ["comm_trace.json"]
    assert calls_of_ranks(traces / "comm_trace.json") == {0: 3, 1: 3, 2: 3, 3: 3}


def test_hosts_without_a_common_directory_have_a_trace_each(tmp_path: Path) -> None:
    from collective_ops import trace

    marks, together = tmp_path / "marks", tmp_path / "together"
    marks.mkdir(), together.mkdir()
    folders = [tmp_path / f"host{number}" for number in range(2)]
    for folder in folders:
        folder.mkdir()
    env = {
        "COLLECTIVE_OPS_TRACE": "1",
        "MARKS": str(marks),
        "COLLECTIVE_OPS_SECRET": "a secret of 16 letters",
    }
    env_of = {rank: {"COLLECTIVE_OPS_TRACE_DIR": str(folders[rank // 2])} for rank in range(4)}
    with NetworkHosts(2) as job:
        command = [sys.executable, "-c", START + TRACED]
        ends = job.run_ranks(command, 2, {**env, "PYTHONPATH": PYTHON}, env_of, timeout=60)
    assert all(end.exit_code == 0 for end in ends), [end.output for end in ends]
    assert sum("trace merge" in end.output for end in ends) == 2
    for number, folder in enumerate(folders):
        assert calls_of_ranks(folder / f"comm_trace.host{number}.json") == {2 * number: 3, 2 * number + 1: 3}
        for raw in folder.glob("*.bin"):
            raw.rename(together / raw.name)
    assert trace.merge(together).complete
    assert calls_of_ranks(together / "comm_trace.json") == {0: 3, 1: 3, 2: 3, 3: 3}


def test_traces_name_what_explain_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from collective_ops import cli, tune
    from test_tune import MACHINE

    program = """
for size in (256, 4 << 20):
    mine, parts = np.ones(size // 4, np.float32), np.ones(size // 4 // world, np.float32)
    ops.allreduce(mine); ops.broadcast(mine); ops.reduce(mine)
    ops.allgather(parts, mine); ops.reducescatter(mine, out=parts)
    ops.gather(parts, mine if rank == 0 else None); ops.alltoall(np.empty_like(mine), mine)
ops.finalize()
"""
    env = {"COLLECTIVE_OPS_TRACE": "1", "COLLECTIVE_OPS_TRACE_DIR": str(tmp_path)}
    outputs(run(program, env=env))
    events = json.loads((tmp_path / "comm_trace.json").read_text())["traceEvents"]
    found = {
        (event["name"], event["args"]["In msg nelems"] * 4): event["args"]["algorithm"]
        for event in events
        if event["ph"] == "X" and event["pid"] == 0 and "algorithm" in event.get("args", {})
    }
    monkeypatch.setattr(tune, "read_machine", lambda again: MACHINE)
    for (name, size), algorithm in found.items():
        words = ["tune", "explain", name, str(size), "--ranks", "4", "--hosts", "2", "--json"]
        assert cli.main(words) == 0
        candidates = json.loads(capsys.readouterr().out)["candidates"]
        assert [one["algorithm"] for one in candidates if one["chosen"]] == [algorithm], (name, size)
    assert len(found) == 14, found


def calls_of_ranks(path: Path) -> dict[int, int]:
    events = json.loads(path.read_text())["traceEvents"]
    ranks = [event["pid"] for event in events if event["ph"] == "X" and event["name"] == "all_reduce"]
    return {rank: ranks.count(rank) for rank in sorted(set(ranks))}


def test_a_killed_rank_is_named_on_all_hosts() -> None:
    program = """
    data = np.ones(1000, np.float32)
    ops.allreduce(data)
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        for _ in range(1000):
            ops.allreduce(data)
    except ops.CollectiveError as error:
        print(type(error).__name__, time.monotonic() - begin < 10, error)
    os._exit(0)
    """.replace("\n    ", "\n")
    ends = run(program)
    for end in ends[:3]:
        assert end.output.startswith("PeerLostError True"), end.output
        assert "rank 3" in end.output


def test_different_calls_are_named_on_all_hosts() -> None:
    program = """
    data = np.ones(1000, np.float32 if rank < 2 else np.int32)
    try:
        ops.allreduce(data)
    except ops.MismatchError as error:
        print(error)
    os._exit(0)
    """.replace("\n    ", "\n")
    for end in run(program):
        assert "They differ in type" in end.output
        assert "float32" in end.output and "int32" in end.output


def test_two_jobs_at_once_do_not_meet() -> None:
    program = """
    data = np.full(1000, int(os.environ["JOB_VALUE"]), np.float32)
    for _ in range(20):
        ops.allreduce(data, op="max")
    print(int(data[0]))
    """.replace("\n    ", "\n")
    with NetworkHosts(2) as hosts:
        ends = []
        for job in range(2):
            variables = {"COLLECTIVE_OPS_SECRET": "a secret of sixteen letters", "PYTHONPATH": PYTHON,
                         "MASTER_PORT": str(29500 + 100 * job), "JOB_VALUE": str(job + 1)}  # fmt: skip
            environment = hosts.rank_environment(1, variables)
            ends.append(
                [
                    hosts.start(rank, [sys.executable, "-c", START + program], environment[rank])
                    for rank in range(2)
                ]
            )
        for job, processes in enumerate(ends):
            for process in processes:
                output, _ = process.communicate(timeout=60)
                assert output.strip() == str(job + 1), output


def start_everywhere(hosts: NetworkHosts, words: list[str], cwd: Path, **env: str) -> list[str]:
    """`collective-ops run` with two ranks on each host; its output and that of the ranks it shows."""
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    variables |= {"PYTHONPATH": PYTHON, "COLLECTIVE_OPS_SECRET": "a secret of sixteen letters", **env}
    command = [sys.executable, "-c", f"import os; os.chdir({str(cwd)!r}); from collective_ops import cli; "
               "raise SystemExit(cli.main())", "run", "--nnodes", "2", "--nproc_per_node", "2",
               "--master-addr", hosts.addresses[0]]  # fmt: skip
    launched = [
        hosts.start(node, [*command, "--node-rank", str(node), *words], variables)
        for node in range(hosts.count)
    ]
    found = []
    for process in launched:
        output, _ = process.communicate(timeout=60)
        found.append(f"exit {process.returncode}\n{output}")
    return found


def test_run_starts_the_ranks_of_each_host(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(
        START + "data = np.full(70_000, rank + 1, np.float32); ops.allreduce(data)\n"
        "print(rank, os.environ['LOCAL_RANK'], os.environ['DEVICE_ID'], world, data[0])\n"
        "ops.finalize()\n"
    )
    with NetworkHosts(2) as hosts:
        first, second = start_everywhere(hosts, ["--show", "all", "train.py"], tmp_path)
    assert first.startswith("exit 0\n") and second.startswith("exit 0\n"), first + second
    assert sorted(line.split("] ")[-1] for line in first.splitlines()[1:]) == ["0 0 0 4 10.0", "1 1 1 4 10.0"]
    assert sorted(line.split("] ")[-1] for line in second.splitlines()[1:]) == [
        "2 0 0 4 10.0",
        "3 1 1 4 10.0",
    ]
    logs = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("runs/*/*.log"))
    assert logs == [f"runs/10.77.0.1-29500-node{rank // 2}/rank_{rank}.log" for rank in range(4)]


def test_run_ends_everywhere_where_a_rank_of_one_host_fails(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(
        START + "if rank == 3: raise SystemExit('rank 3 has no data')\n"
        "while True: ops.allreduce(np.ones(10, np.float32))\n"
    )
    with NetworkHosts(2) as hosts:
        first, second = start_everywhere(hosts, ["train.py"], tmp_path)
    assert second.startswith("exit 1\n") and "rank 3 of 4 failed with exit code 1" in second, second
    assert "rank 3 has no data" in second
    assert first.startswith("exit 1\n") and "rank 3" in first, first


def test_perf_measures_over_hosts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = str(Path(PYTHON) / "collective_ops" / "_perf")
    if not Path(program).exists():
        pytest.skip("collective-ops perf is not built")
    words = [program, "all_reduce", "-p", "2", "-b", "8", "-e", "128K", "-f", "128", "-z", "0", "--json"]
    with NetworkHosts(2) as hosts:
        first, second = start_everywhere(hosts, words, tmp_path)
    assert first.startswith("exit 0\n") and second == "exit 0\n", first + second
    report = json.loads(first.removeprefix("exit 0\n"))
    assert report["ranks"] == 4 and report["host"] == "host0, host1"
    assert {row["bytes"] for row in report["rows"]} == {8, 1024, 128 << 10}
    assert all(row["wrong"] == 0 for row in report["rows"])


def test_without_a_secret_hosts_are_refused() -> None:
    environment = {"COLLECTIVE_OPS_SECRET": "", "HCCL_CONNECT_TIMEOUT": "10", "HOME": os.devnull}
    ends = run("", ranks=1, env=environment)
    assert all(end.exit_code != 0 for end in ends)
    assert any("secret" in end.output for end in ends)


def test_a_model_trains_over_hosts() -> None:
    program = """
    import torch
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    for parameter in model.parameters():
        ops.broadcast(parameter.detach())
    bucket = ops.GradientBucket(bucket_size_mb=1, reduce_op="avg", parameters=model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(256, 8)  # each rank its own
    losses = []
    for step in range(40):
        bucket.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        bucket.allreduce()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4, losses
    print(sum(parameter.double().sum().item() for parameter in model.parameters()))
    """.replace("\n    ", "\n")
    found = outputs(run(program, env={"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}))
    assert len(set(found)) == 1, found
