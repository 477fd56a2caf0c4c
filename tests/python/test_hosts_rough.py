"""Jobs over hosts whose network misbehaves: links that go and come back, small frames, losses, and one that
never comes back."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import network_hosts
import pytest
from network_hosts import NetworkHosts, RankEnd, wait_for_ranks
from test_hosts import COLLECTIVES, PYTHON, START, outputs

if reason := network_hosts.unsupported():
    pytest.skip(reason, allow_module_level=True)

VARIABLES = {"COLLECTIVE_OPS_SECRET": "a secret of sixteen letters", "PYTHONPATH": PYTHON}
# Says when it is under way, and ends its rounds where it is told to; all ranks in the same round.
ROUNDS = """
data = np.empty(300_000, np.float32)
folder, turn = os.environ["FOLDER"], 0
while True:
    data[:] = rank + turn
    ops.allreduce(data)
    assert (data == sum(r + turn for r in range(world))).all()
    turn += 1
    if turn == 3: open(f"{folder}/under_way{rank}", "w").close()
    told = np.array([os.path.exists(f"{folder}/stop")], np.int32)
    ops.allreduce(told, op="min")
    if told[0]: break
print("good")
ops.finalize()
"""


def start(hosts: NetworkHosts, folder: Path, **more: str) -> list:
    environment = hosts.rank_environment(1, {**VARIABLES, "FOLDER": str(folder), **more})
    started = []
    for rank in range(hosts.count):
        output = (folder / f"output{rank}").open("w+")
        command = [sys.executable, "-c", START + ROUNDS]
        started.append((hosts.start(rank, command, environment[rank], output), output))
    deadline = time.monotonic() + 60
    while len(list(folder.glob("under_way*"))) < hosts.count:
        assert time.monotonic() < deadline, [Path(output.name).read_text() for _, output in started]
        time.sleep(0.05)
    return started


def finish(folder: Path, started: list, timeout: float = 60) -> list[RankEnd]:
    (folder / "stop").touch()
    return wait_for_ranks(started, timeout)


def test_a_link_that_comes_back_is_no_failure(tmp_path: Path) -> None:
    with NetworkHosts(2) as hosts:
        started = start(hosts, tmp_path)
        hosts.set_link(1, up=False)
        time.sleep(5)  # is what is tested
        assert all(process.poll() is None for process, _ in started)
        hosts.set_link(1, up=True)
        assert outputs(finish(tmp_path, started)) == ["good"] * 2


def test_a_host_that_is_gone_without_a_word_is_named_at_the_deadline(tmp_path: Path) -> None:
    with NetworkHosts(2) as hosts:
        started = start(hosts, tmp_path, HCCL_EXEC_TIMEOUT="3")
        hosts.set_link(1, up=False)
        ends = finish(tmp_path, started)
    for end, other in zip(ends, ("rank 1 on host1", "rank 0 on host0"), strict=True):
        assert end.exit_code == 1 and not end.timed_out, end.output
        assert "CollectiveTimeoutError" in end.output or "TimeoutError" in end.output, end.output
        assert other in end.output, end.output


def test_small_frames() -> None:
    with NetworkHosts(2) as hosts:
        for host in range(2):
            hosts.run(host, "ip", "link", "set", "eth0", "mtu", "576")
        command = [sys.executable, "-c", START + COLLECTIVES]
        assert outputs(hosts.run_ranks(command, 2, VARIABLES, timeout=90)) == ["good"] * 4


@pytest.mark.skipif(shutil.which("nft") is None, reason="no nft here: install nftables")
def test_losses(tmp_path: Path) -> None:
    rules = "table ip t { chain c { type filter hook input priority 0; numgen random mod 100 == 0 drop; }; }"
    with NetworkHosts(2) as hosts:
        for host in range(2):
            hosts.run(host, "nft", rules)
        command = [sys.executable, "-c", START + COLLECTIVES]
        assert outputs(hosts.run_ranks(command, 2, VARIABLES, timeout=120)) == ["good"] * 4
