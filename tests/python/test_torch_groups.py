"""Process groups of the PyTorch backend: how they come, go and fail; messages, objects, futures."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")

import collective_ops_torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from rank_pool import RankPool, report  # noqa: E402
from torch_groups import process_group, rank, world_size  # noqa: E402


def test_no_import_is_needed(tmp_path: Path) -> None:
    script = f"""
import torch, torch.distributed as dist
for number, backend in enumerate(["collective_ops", "cpu:collective_ops", "cpu:collective_ops,cuda:gloo"]):
    dist.init_process_group(backend, init_method="file://{tmp_path}/store%d" % number, rank=0, world_size=1)
    x = torch.ones(3)
    dist.all_reduce(x)
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    print(backend.name(), x.tolist())
    dist.destroy_process_group()
print(dist.Backend.default_device_backend_map["cpu"])
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["collective_ops [1.0, 1.0, 1.0]"] * 3 + ["gloo"]


def sub_groups() -> list[float]:
    n, me = world_size(), rank()
    sums = []
    with process_group():
        for ranks in ([0, 1], [n - 1, 0], list(range(n))):
            group = dist.new_group(ranks)
            if me in ranks:
                number = torch.tensor([float(me + 1)])
                dist.all_reduce(number, group=group)
                sums.append(number.item())
        many = [dist.new_group([0, n - 1]) for _ in range(20)]
        if me in (0, n - 1):
            for group in many:
                dist.barrier(group)
    return sums


def test_sub_groups(rank_pool: RankPool) -> None:
    assert rank_pool.run(sub_groups, 4) == [[3.0, 5.0, 10.0], [3.0, 10.0], [10.0], [5.0, 10.0]]


def rounds_on_one_store(kind: str, path: str) -> int:
    me, n = rank(), world_size()
    store = (
        dist.FileStore(path, n)
        if kind == "file"
        else dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), n, me == 0)
    )
    for round_number in range(4):
        dist.init_process_group("collective_ops", store=store, rank=me, world_size=n)
        number = torch.tensor([round_number + me])
        dist.all_reduce(number)
        assert number.item() == n * round_number + n * (n - 1) // 2
        dist.destroy_process_group()
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        dist.init_process_group("collective_ops", store=store, rank=me, world_size=n)
        dist.barrier()
        dist.destroy_process_group()
    store.set(f"done/{me}", "")
    if me == 0:  # which serves the store
        store.wait([f"done/{r}" for r in range(n)])
    return len(os.listdir("/proc/self/fd")) - descriptors


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_groups_come_and_go_on_one_store(rank_pool: RankPool, kind: str, tmp_path: Path) -> None:
    growth = rank_pool.run(rounds_on_one_store, 3, (kind, str(tmp_path / "store")))
    assert max(growth) <= 2


def several_threads() -> None:
    n = world_size()
    with process_group():
        groups = [dist.new_group(list(range(n))) for _ in range(4)]
        wrong: list[float] = []

        def work(number: int) -> None:
            for step in range(100):
                x = torch.full((50,), float(number + step))
                dist.all_reduce(x, group=groups[number])
                if x[49] != n * (number + step):
                    wrong.append(x[49].item())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_group_for_each_thread(rank_pool: RankPool) -> None:
    rank_pool.run(several_threads, 2)


def futures() -> None:
    n, me = world_size(), rank()
    with process_group():
        x = torch.full((1000,), float(me))
        work = dist.all_reduce(x, async_op=True)
        halved = work.get_future().then(lambda future: future.value()[0] / 2)
        assert halved.wait()[0].item() == n * (n - 1) / 4
        assert work.is_completed() and work.is_success()
        assert work.get_future().value()[0] is not None
        # A callback may make calls of its own.
        y = torch.ones(4)
        work = dist.all_reduce(x, async_op=True)

        def more(_: torch.futures.Future) -> torch.Tensor:
            dist.all_reduce(y)
            return y

        assert work.get_future().then(more).wait().tolist() == [float(n)] * 4
        # Dropped handles: the results are there after the next barrier.
        dropped = [torch.ones(100 * i) for i in range(50)]
        for tensor in dropped:
            dist.all_reduce(tensor, async_op=True)
        dist.barrier()
        assert all(tensor.eq(n).all() for tensor in dropped)


def test_futures(rank_pool: RankPool) -> None:
    rank_pool.run(futures, 3)


def messages() -> list[int]:
    n, me = world_size(), rank()
    sources = []
    with process_group():
        # Around a ring; both sides send first, and large messages as well as small ones.
        for count in (1, 1000, 3_000_000):
            sent, got = torch.full((count,), float(me)), torch.zeros(count)
            work = dist.isend(sent, (me + 1) % n)
            dist.recv(got, (me - 1) % n)
            work.wait()
            assert got.eq((me - 1) % n).all()
        # Tags out of order; strided memory.
        if me == 0:
            for tag in range(5):
                dist.send(torch.full((4,), tag), 1, tag=tag)
        elif me == 1:
            for tag in reversed(range(5)):
                holder = torch.full((8,), -1)
                dist.recv(holder[::2], 0, tag=tag)
                assert holder.tolist() == [tag, -1] * 4
        # From anybody.
        if me == 0:
            for _ in range(n - 1):
                number = torch.zeros(1, dtype=torch.int64)
                source = dist.recv(number)
                assert number.item() == 10 * source
                sources.append(source)
        else:
            dist.send(torch.tensor([10 * me]), 0)
        dist.barrier()
        # A batch, itself among the receivers.
        outs = [torch.zeros(3) for _ in range(n)]
        batch = [dist.P2POp(dist.isend, torch.full((3,), float(me)), r) for r in range(n)]
        batch += [dist.P2POp(dist.irecv, outs[r], r) for r in range(n)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        assert [out[2].item() for out in outs] == [float(r) for r in range(n)]
        # A handle that is dropped; the message arrives all the same.
        if me == 0:
            dist.isend(torch.arange(500_000), n - 1)
        if me == n - 1:
            time.sleep(0.2)
            late = torch.zeros(500_000, dtype=torch.int64)
            dist.recv(late, 0)
            assert late[-1].item() == 499_999
    return sorted(sources)


def test_messages(rank_pool: RankPool) -> None:
    assert rank_pool.run(messages, 3)[0] == [1, 2]


def objects() -> None:
    n, me = world_size(), rank()
    with process_group():
        gathered = [None] * n
        dist.all_gather_object(gathered, {"rank": me, "text": "x" * (1000 * me)})
        assert [len(one["text"]) for one in gathered] == [1000 * r for r in range(n)]
        told = [me, "from", me] if me == 1 else [None] * 3
        dist.broadcast_object_list(told, src=1)
        assert told == [1, "from", 1]
        given = [None]
        dist.scatter_object_list(given, [f"for {r}" for r in range(n)] if me == 0 else None, src=0)
        assert given == [f"for {me}"]
        group = dist.new_group([2, 1])
        if me in (1, 2):
            collected = [None, None] if dist.get_rank(group) == 0 else None
            dist.gather_object(me, collected, group=group, dst=dist.get_global_rank(group, 0))
            assert collected in (None, [dist.get_global_rank(group, r) for r in range(2)])
        dist.barrier()


def test_objects(rank_pool: RankPool) -> None:
    rank_pool.run(objects, 3)


def sparse() -> None:
    n, me = world_size(), rank()
    with process_group():
        for dense in ((), (3,)):
            values = torch.full((me + 1, *dense), float(me + 1))
            own = torch.sparse_coo_tensor(torch.arange(me + 1).unsqueeze(0), values, (n, *dense))
            dist.all_reduce(own)
            expected = torch.tensor([float(sum(r + 1 for r in range(row, n))) for row in range(n)])
            whole = own.to_dense()
            assert torch.equal(whole if not dense else whole[:, 0], expected)


def test_sparse_all_reduce(rank_pool: RankPool) -> None:
    rank_pool.run(sparse, 3)


# --- Failures --------------------------------------------------------------------------------------


def failure_of(call: object) -> tuple[str, str, float]:
    """Type and text of what the call raises, and how long it took."""
    begun = time.monotonic()
    try:
        call()  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001
        return type(error).__name__, str(error), time.monotonic() - begun
    return "", "", time.monotonic() - begun


def disagreement(kind: str) -> tuple[str, str, float]:
    me = rank()
    with process_group():
        dist.barrier()
        x = torch.ones(1000 if me == 0 else 2000)
        y = torch.ones(10, dtype=torch.float32 if me == 0 else torch.float64)
        z = torch.ones(10)
        calls = {
            "size": lambda: dist.all_reduce(x),
            "type": lambda: dist.all_reduce(y),
            "op": lambda: dist.all_reduce(z, dist.ReduceOp.SUM if me == 0 else dist.ReduceOp.MAX),
            "root": lambda: dist.broadcast(z, me % 2),
            "call": lambda: dist.all_reduce(z) if me == 0 else dist.broadcast(z, 1),
            "splits": lambda: dist.all_to_all_single(
                torch.empty(6), torch.ones(6), [2, 2, 2], [2, 2, 2] if me else [1, 2, 3]
            ),
        }
        failed = failure_of(calls[kind])
        again = failure_of(lambda: dist.all_reduce(z))
        if not failed[0]:  # a root that waits for nobody is told by its next call
            assert kind in ("root", "call")
            failed = again
        return (*failed[:2], again[0])


@pytest.mark.parametrize("kind", ["size", "type", "op", "root", "call", "splits"])
def test_ranks_that_disagree_all_learn_it(rank_pool: RankPool, kind: str) -> None:
    for name, text, again in rank_pool.run(disagreement, 3, (kind,)):
        assert (name, again) == ("DistBackendError", "DistBackendError"), text
        assert "rank" in text and (
            "mismatch" in text or "differ" in text or "expect" in text or "made" in text
        ), text


def bad_arguments() -> None:
    n = world_size()
    with process_group():
        x = torch.ones(4)
        cases = [
            (
                "ValueError",
                lambda: dist.all_to_all_single(torch.empty(4), x, [1] * n, [4, 4] + [0] * (n - 2)),
            ),
            ("ValueError", lambda: dist.all_to_all_single(torch.empty(4), x, [4], [1] * n)),
            ("ValueError", lambda: dist.all_to_all_single(torch.empty(5), torch.ones(5))),
            ("ValueError", lambda: dist.all_gather_into_tensor(torch.empty(5), x)),
            ("ValueError", lambda: dist.reduce_scatter_tensor(torch.empty(5), x)),
            ("ValueError", lambda: dist.all_reduce(torch.ones(1).expand(4))),
            ("TypeError", lambda: dist.all_reduce(torch.ones(4, dtype=torch.bool), dist.ReduceOp.AVG)),
            ("TypeError", lambda: dist.all_reduce(torch.ones(4), dist.ReduceOp.BAND)),
            ("TypeError", lambda: dist.all_reduce(torch.ones(4).to(torch.float8_e5m2))),
        ]
        for wanted, call in cases:
            name, text, _ = failure_of(call)
            assert name == wanted, (name, text)
        dist.all_reduce(x)  # the group is whole
        assert x[0] == n


def test_bad_arguments_are_refused_and_the_group_goes_on(rank_pool: RankPool) -> None:
    rank_pool.run(bad_arguments, 3)


def one_refuses() -> tuple[str, str]:
    with process_group():
        x = torch.ones(4)
        if rank() == 0:
            assert failure_of(lambda: dist.all_reduce(torch.ones(1).expand(4)))[0] == "ValueError"
        else:
            assert failure_of(lambda: dist.all_reduce(x))[0] == "DistBackendError"
        return failure_of(lambda: dist.all_reduce(x))[:2]


def test_a_call_that_one_rank_refused_breaks_the_group(rank_pool: RankPool) -> None:
    assert [name for name, _ in rank_pool.run(one_refuses, 2)] == ["DistBackendError"] * 2


def late_rank(asynchronous: bool) -> tuple[str, str, float]:
    with process_group(seconds=20):
        dist.barrier()
        if rank() == 1:
            report("late")
            time.sleep(1.5)
            return "", "", 0.0
        group = dist.distributed_c10d._get_default_group()
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.3)
        options.asyncOp = asynchronous
        return failure_of(lambda: group.allreduce([torch.ones(3)], options).wait())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_timeout_of_one_call(rank_pool: RankPool, asynchronous: bool) -> None:
    name, text, seconds = rank_pool.run(late_rank, 2, (asynchronous,))[0]
    assert name == "DistBackendError" and "rank 1" in text, text
    assert 0.25 < seconds < 1.4


def aborted() -> tuple[str, str, float]:
    with process_group():
        dist.barrier()
        if rank() == 1:
            time.sleep(1)
            return failure_of(lambda: dist.all_reduce(torch.ones(3)))
        group = dist.distributed_c10d._get_default_group()
        moment: list[float] = []

        def stop() -> None:
            moment.append(time.monotonic())
            group.abort()

        threading.Timer(0.3, stop).start()
        name, text, _ = failure_of(lambda: dist.all_reduce(torch.ones(3)))
        return name, text, time.monotonic() - moment[0]


def test_abort_from_another_thread(rank_pool: RankPool) -> None:
    (name, text, seconds), (other, _, _) = rank_pool.run(aborted, 2)
    assert (name, other) == ("DistBackendError", "DistBackendError") and "abort" in text
    assert seconds < 0.5


def victim() -> tuple[str, str]:
    with process_group():
        dist.barrier()
        report(os.getpid())
        if rank() == 2:
            time.sleep(60)
        return failure_of(lambda: dist.all_reduce(torch.ones(3)))[:2]


def test_death_of_a_rank(rank_pool: RankPool) -> None:
    ranks = rank_pool.start(victim, 3)
    for r in range(3):
        ranks.receive(r)
    os.kill(ranks.pids[2], signal.SIGKILL)
    outcomes = ranks.wait(30)
    for outcome in outcomes[:2]:
        assert outcome.ok, outcome
        name, text = outcome.value
        assert name == "DistBackendError" and "rank 2" in text


def after_shutdown() -> None:
    dist.init_process_group("collective_ops")
    group = dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    dist.barrier()
    backend.shutdown()
    name, text, _ = failure_of(lambda: dist.barrier())
    assert name == "DistBackendError" and "shut down" in text


def test_calls_after_shutdown(rank_pool: RankPool) -> None:
    rank_pool.run(after_shutdown, 2)


def monitored(missing: int) -> str:
    with process_group():
        group = dist.distributed_c10d._get_default_group()
        group.monitored_barrier(timedelta(seconds=10))
        text = ""
        if rank() != missing:
            text = failure_of(lambda: group.monitored_barrier(timedelta(seconds=0.5), wait_all_ranks=True))[1]
        number = torch.ones(1)
        dist.all_reduce(number)
        assert number.item() == world_size()
        return text


def test_monitored_barrier_names_who_is_missing(rank_pool: RankPool) -> None:
    texts = rank_pool.run(monitored, 3, (2,))
    assert "Rank 2 failed to pass monitoredBarrier" in texts[0]


def interrupted() -> str:
    with process_group():
        dist.barrier()
        if rank() == 1:
            time.sleep(2)
            return ""
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            dist.all_reduce(torch.ones(4))
        except KeyboardInterrupt:
            return "interrupted"
        return "returned"


def test_ctrl_c_ends_a_blocked_call(rank_pool: RankPool) -> None:
    assert rank_pool.run(interrupted, 2)[0] == "interrupted"


def regrouped() -> list[float]:
    n, me = world_size(), rank()
    sums = []
    dist.init_process_group("collective_ops", timeout=timedelta(seconds=30))
    world = dist.distributed_c10d._get_default_group()
    backend = world._get_backend(torch.device("cpu"))
    assert backend.supports_splitting and backend.supports_shrinking
    if me != 1:
        smaller = dist.shrink_group([1])
        number = torch.tensor([float(me)])
        dist.all_reduce(number)
        sums.append(number.item())
        assert smaller.size() == n - 1 and dist.get_world_size() == n - 1
        dist.destroy_process_group()
    return sums


def test_shrinking_goes_on_with_the_survivors(rank_pool: RankPool) -> None:
    assert rank_pool.run(regrouped, 4) == [[5.0], [], [5.0], [5.0]]


def leaves_a_dump(folder: str) -> None:
    with process_group():
        dist.barrier()
        dist.all_reduce(torch.ones(4, 3))
        if rank() == 2:
            collective_ops_torch.dump_flight_recorder(f"{folder}/rank_2")
        group = dist.distributed_c10d._get_default_group()
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.5)
        if rank() != 2:
            assert (
                failure_of(lambda: group.allreduce([torch.ones(3)], options).wait())[0] == "DistBackendError"
            )


def test_torchfrtrace_reads_our_dumps(rank_pool: RankPool, tmp_path: Path) -> None:
    rank_pool.run(leaves_a_dump, 3, (str(tmp_path),), env={"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/rank_"})
    dumps = [pickle.loads((tmp_path / f"rank_{r}").read_bytes()) for r in range(3)]
    assert [entry["profiling_name"] for entry in dumps[0]["entries"]] == [
        "gloo:barrier",
        "gloo:all_reduce",
        "gloo:all_reduce",
    ]
    assert [entry["state"] for entry in dumps[0]["entries"]] == ["completed", "completed", "started"]
    assert dumps[0]["entries"][1]["input_sizes"] == [[4, 3]] and len(dumps[2]["entries"]) == 2
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path)]
    result = subprocess.run([*command, "-p", "rank_"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "missing ranks: {2}" in result.stdout + result.stderr


def ended_by_an_exception() -> str:
    dist.init_process_group("collective_ops", timeout=timedelta(seconds=60))
    dist.barrier()
    if rank() == 0:
        dist.all_reduce(torch.ones(3), async_op=True)
        sys.last_value = ValueError("wrong learning rate")  # as the interpreter leaves it
        return ""
    time.sleep(0.5)
    return failure_of(lambda: dist.broadcast(torch.ones(3), 0))[1]


def test_the_end_of_a_program_by_an_exception_is_told(rank_pool: RankPool) -> None:
    begun = time.monotonic()
    text = rank_pool.run(ended_by_an_exception, 2)[1]
    assert "wrong learning rate" in text or "rank 0" in text
    assert time.monotonic() - begun < 30
