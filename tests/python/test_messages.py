"""Send and receive on real ranks: every order and kind of memory, what goes wrong, and ranks that leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collective_ops import (
    CollectiveError,
    CollectiveTimeoutError,
    GroupBrokenError,
    InvalidArgumentError,
    MismatchError,
    P2POp,
    allreduce,
    barrier,
    batch_isend_irecv,
    counters,
    empty,
    finalize,
    init_hccl,
    irecv,
    isend,
    new_group,
    rank,
    recv,
    send,
    sendrecv,
    world_size,
)
from rank_pool import RankPool, report

PATIENCE_S = 2.0  # the promise is 200 ms on a machine that has time for the ranks


def numbers(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count, np.float32)


def placed(values: np.ndarray, shared: bool) -> np.ndarray:
    if not shared:
        return values.copy()
    array = np.from_dlpack(empty(values.shape, values.dtype.name))
    array[...] = values
    return array


# --- What arrives ----------------------------------------------------------------------------------


def pass_round(shared: bool) -> dict[str, int]:
    init_hccl()
    me, n = rank(), world_size()
    following, before = (me + 1) % n, (me - 1) % n
    for count in (0, 1, 1000, 5000, 300_000, 2_000_003):
        out, into = placed(numbers(me, count), shared), placed(np.zeros(count, np.float32), shared)
        assert sendrecv(out, following, into, before, send_tag=count) == before
        np.testing.assert_array_equal(into, numbers(before, count))
        into[...] = 0
        receiving = irecv(into, before, tag=count + 1)
        assert isend(out, following, tag=count + 1).wait() is None
        assert receiving.wait() == before == receiving.source
        assert receiving.done()
        np.testing.assert_array_equal(into, numbers(before, count))
    return counters()


@pytest.mark.parametrize("path", ["shared", "read", "staged"])
def test_messages_arrive(rank_pool: RankPool, path: str) -> None:
    environment = {"COLLECTIVE_OPS_PATH": "staged"} if path == "staged" else None
    results = rank_pool.run(pass_round, 3, (path == "shared",), env=environment)
    sizes = 4 * 2 * (1 + 1000 + 5000 + 300_000 + 2_000_003)
    for result in results:
        assert result["sends"] == result["receives"] == 12
        assert result["sent_bytes"] == result["received_bytes"] == sizes
        assert result["calls"] == 0


def exchange_large_ones(tensor_library: str) -> None:
    """64 MB both ways, eight at once, tags out of order, all sends before all receives."""
    init_hccl()
    peer, part = 1 - rank(), 2 << 20
    outs = [numbers(10 * rank() + i, part) for i in range(8)]
    intos: list[Any] = [np.zeros(part, np.float32) for _ in range(8)]
    if tensor_library == "torch":
        import torch

        outs, intos = [torch.from_numpy(t) for t in outs], [torch.from_numpy(t) for t in intos]
    works = [isend(outs[i], peer, tag=i) for i in range(8)]
    works += [irecv(intos[i], peer, tag=i) for i in (5, 7, 0, 2, 6, 1, 4, 3)]
    for work in reversed(works):
        work.wait()
    for i in range(8):
        np.testing.assert_array_equal(np.asarray(intos[i]), numbers(10 * peer + i, part))


@pytest.mark.parametrize("tensor_library", ["numpy", "torch"])
def test_both_sides_send_first(rank_pool: RankPool, tensor_library: str) -> None:
    rank_pool.run(exchange_large_ones, 2, (tensor_library,))


def send_to_myself() -> None:
    init_hccl()
    for count in (0, 3, 100_000):
        out, into = numbers(rank(), count), np.zeros(count, np.float32)
        works = batch_isend_irecv([P2POp(isend, out, rank()), P2POp(irecv, into, rank())])
        assert [work.wait() for work in works] == [None, rank()]
        np.testing.assert_array_equal(into, out)
        into[...] = 0
        # One-sided, and with a neighbour in the same batch.
        peer, other = 1 - rank(), np.zeros(count, np.float32)
        batch = [
            P2POp(irecv, other, peer, tag=1),
            P2POp(isend, out, rank(), tag=2),
            P2POp(isend, out, peer, tag=1),
            P2POp(irecv, into, rank(), tag=2),
        ]
        for work in batch_isend_irecv(batch):
            work.wait()
        np.testing.assert_array_equal(into, out)
        np.testing.assert_array_equal(other, numbers(peer, count))


def test_to_oneself(rank_pool: RankPool) -> None:
    rank_pool.run(send_to_myself, 2)


def gather_from_any() -> list[int]:
    init_hccl()
    sources = []
    if rank() == 0:
        for count in (5, 100_000):
            for _ in range(world_size() - 1):
                into = np.zeros(count, np.float32)
                source = recv(into, tag=count)
                np.testing.assert_array_equal(into, numbers(source, count))
                sources.append(source)
    else:
        for count in (5, 100_000):
            send(numbers(rank(), count), 0, tag=count)
    return sources


def test_any_source(rank_pool: RankPool) -> None:
    sources = rank_pool.run(gather_from_any, 4)[0]
    assert sorted(sources[:3]) == sorted(sources[3:]) == [1, 2, 3]


def strided_and_typed() -> None:
    import torch

    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        return torch.equal(*(t if t.is_complex() else t.double() for t in (a, b)))

    init_hccl()
    types = [torch.float8_e4m3fn, torch.bfloat16, torch.bool, torch.complex64, torch.int64, torch.float16]
    for dtype in types:
        whole = (torch.arange(24 * 40) % 7).reshape(24, 40).to(dtype)
        if rank() == 0:
            send(whole[::2, 1::3], 1)
            isend(whole.t(), 1).wait()
            continue
        into = torch.zeros(13, 24).to(dtype).t()[::2]
        recv(into, 0)
        assert same(into, whole[::2, 1::3])
        turned = torch.zeros(24, 40).to(dtype).t()
        irecv(turned, 0).wait()
        assert same(turned, whole.t())


def test_strided_tensors_of_any_type(rank_pool: RankPool) -> None:
    rank_pool.run(strided_and_typed, 2)


def messages_in_a_group() -> None:
    """Ranks are those of the world, also in a group with another order."""
    init_hccl()
    group = new_group([3, 1, 2]) if rank() != 0 else None
    if group is not None:
        into = np.zeros(3)
        following = {3: 1, 1: 2, 2: 3}[rank()]
        receiving = group.irecv(into)
        send(np.full(3, float(rank())), following, group=group)
        assert following == {1: 2, 2: 3, 3: 1}[rank()]
        source = receiving.wait()
        assert source == {1: 3, 2: 1, 3: 2}[rank()] and into.tolist() == [source] * 3
        with pytest.raises(InvalidArgumentError, match="dst=0 is no rank of"):
            group.send(into, 0)
        barrier(group=group)  # nothing of what follows may come to the receive from any rank above
        # The same tag in the world is another message.
    works = []
    if rank() in (1, 2):
        other = 3 - rank()
        world, inner = np.full(2, 1.0), np.full(2, 2.0)
        a, b = np.zeros(2), np.zeros(2)
        works = batch_isend_irecv(
            [P2POp(irecv, b, other, group), P2POp(isend, world, other), P2POp(isend, inner, other, group)]
        )
        assert recv(a, other) == other and a[0] == 1.0
        assert [work.wait() for work in works] == [other, None, None] and b[0] == 2.0
    barrier()


def test_in_a_group(rank_pool: RankPool) -> None:
    rank_pool.run(messages_in_a_group, 4)


def threads_and_collectives() -> None:
    init_hccl()
    errors: list[BaseException] = []

    def talk(tag: int) -> None:
        try:
            for i in range(50):
                count = (1, 3000, 30_000)[tag]
                into = np.zeros(count, np.float32)
                if rank() == 0:
                    send(numbers(i, count), 1, tag)
                    recv(into, 1, tag)
                else:
                    recv(into, 0, tag)
                    send(numbers(i, count), 0, tag)
                np.testing.assert_array_equal(into, numbers(i, count))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        assert allreduce(np.ones(100))[0] == 2
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_several_threads_beside_collectives(rank_pool: RankPool) -> None:
    rank_pool.run(threads_and_collectives, 2)


# --- Ranks that leave ------------------------------------------------------------------------------


def drop_and_leave(how: str) -> float | None:
    init_hccl()
    barrier()
    if rank() == 0:
        isend(numbers(1, 250_000), 1)  # 1 MB, and nobody keeps the Work
        if how == "finalize":
            finalize()
        return None
    time.sleep(2)  # by then the sender is leaving; a shorter time would test less, never fail
    into = np.zeros(250_000, np.float32)
    recv(into, 0)
    np.testing.assert_array_equal(into, numbers(1, 250_000))
    return None


@pytest.mark.parametrize("how", ["exit", "finalize"])
def test_a_dropped_send_is_delivered_before_its_rank_leaves(rank_pool: RankPool, how: str) -> None:
    rank_pool.run(drop_and_leave, 2, (how,))


def leave_without_a_taker() -> None:
    init_hccl()
    barrier()
    isend(np.zeros(250_000, np.float32), 1 - rank(), tag=7)


def test_sends_that_nobody_takes_are_told(rank_pool: RankPool) -> None:
    outcomes = rank_pool.start(leave_without_a_taker, 2).wait(timeout=30)
    assert all(outcome.exit_code == 0 for outcome in outcomes), outcomes
    text = outcomes[0].output + outcomes[1].output
    assert "send of 250000 float32 (1000000 bytes), tag 7" in text and "collective-ops:" in text


def receive_from_the_dead(victim: int, expects: str) -> tuple[str, str, float]:
    init_hccl()
    if rank() == victim:
        send(np.arange(4.0), 0, tag=1)
        barrier()
        report("ready")
        signal.pause()
    barrier()
    report("ready")
    into = np.zeros(100_000)
    try:
        if expects == "send":
            send(into, victim)
        else:
            recv(into, victim if expects == "recv" else None)
    except CollectiveError as error:
        when = time.monotonic()
        return type(error).__name__, str(error), when
    raise AssertionError("a dead rank has answered")


@pytest.mark.parametrize("expects", ["recv", "any source", "send"])
def test_a_killed_rank_is_named(
    rank_pool: RankPool, expects: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = rank_pool.start(receive_from_the_dead, 3, (2, expects))
    for each in range(3):
        ranks.receive(each)
    time.sleep(0.05)  # most likely they wait by then
    killed = time.monotonic()
    os.kill(ranks.pids[2], signal.SIGKILL)
    outcomes = ranks.wait(timeout=30)
    delays = []
    for outcome in outcomes[:2]:
        assert outcome.ok, outcome
        name, text, when = outcome.value
        assert name == "PeerLostError" or (name == "GroupBrokenError" and "(peer_lost)" in text), text
        assert "rank 2" in text and str(ranks.pids[2]) in text
        delays.append(when - killed)
    with capsys.disabled():
        print(f" [from kill to exception: {1e3 * max(delays):.0f} ms]", end="")
    assert max(delays) < PATIENCE_S


def receive_what_the_dead_has_sent() -> list[float]:
    init_hccl()
    if rank() == 1:
        send(np.arange(4.0), 0, tag=1)
        send(np.full(500, 5.0), 0, tag=2)
        report("sent")
        signal.pause()
    report("ready")
    while os.path.exists(f"/proc/{os.getppid()}") and not os.path.exists(os.environ["TEST_SIGN"]):
        time.sleep(0.01)
    large, small = np.zeros(500), np.zeros(4)
    recv(large, 1, tag=2)
    recv(small, 1, tag=1)
    assert large.tolist() == [5.0] * 500
    return small.tolist()


def test_what_a_dead_rank_has_sent_is_there(rank_pool: RankPool, tmp_path: Path) -> None:
    sign = tmp_path / "killed"
    ranks = rank_pool.start(receive_what_the_dead_has_sent, 2, env={"TEST_SIGN": str(sign)})
    ranks.receive(0)
    ranks.receive(1)
    os.kill(ranks.pids[1], signal.SIGKILL)
    sign.touch()
    assert ranks.wait(timeout=30)[0].value == [0, 1, 2, 3]


# --- What is wrong ---------------------------------------------------------------------------------


def wrong_arguments() -> None:
    init_hccl()
    array = np.zeros(3)
    for call, text in (
        (lambda: send(array, 2), "no rank 2"),
        (lambda: send(array, -1), "no rank -1"),
        (lambda: recv(array, -1), "no rank -"),
        (lambda: send(array, 1, tag=-3), "tag -3"),
        (lambda: send(array, 1, tag="a"), "tag='a'"),
        (lambda: send(array, 1.5), "dst=1.5"),
        (lambda: send(None, 1), "tensor is None"),
        (lambda: recv(np.zeros(0), 9), "no rank 9"),
        (lambda: batch_isend_irecv([P2POp(isend, array, 1), P2POp(isend, array, 5)]), "no rank 5"),
        (lambda: P2POp(send, array, 1), "give isend or irecv"),
        (lambda: batch_isend_irecv([(isend, array, 1)]), "P2POp"),
        (lambda: send(array, 1, timeout=-1), "timeout"),
    ):
        with pytest.raises(InvalidArgumentError) as raised:
            call()
        assert text in str(raised.value), str(raised.value)
    # Nothing of the batch was begun either: this is the first message.
    assert sendrecv(np.full(3, 2.0), 1 - rank(), array) == 1 - rank()
    assert array.tolist() == [2.0] * 3


def test_wrong_arguments_leave_the_group_usable(rank_pool: RankPool) -> None:
    rank_pool.run(wrong_arguments, 2)


def disagree(what: str, count: int) -> tuple[str, str, str]:
    init_hccl()
    barrier()
    name = text = ""
    try:
        if rank() == 0:
            send(np.zeros(count, np.float32), 1, tag=3)
            barrier()
        elif what == "type":
            recv(np.zeros(count, np.int32), 0, tag=3)
        else:
            recv(np.zeros(count + (1 if what == "longer" else -1), np.float32), 0, tag=3)
    except (MismatchError, GroupBrokenError) as error:
        name, text = type(error).__name__, str(error)
    with pytest.raises(GroupBrokenError) as broken:
        send(np.zeros(1), 1 - rank())
    return name, text, str(broken.value)


@pytest.mark.parametrize("count", [10, 100_000])
@pytest.mark.parametrize("what", ["type", "longer", "shorter"])
def test_disagreements_are_named(rank_pool: RankPool, what: str, count: int) -> None:
    for name, text, later in rank_pool.run(disagree, 2, (what, count)):
        assert name == "MismatchError" or (name == "GroupBrokenError" and "(mismatch)" in text), (name, text)
        for part in ("rank 0", "rank 1 receives", "tag 3", f"{count} float32"):
            assert part in text and part in later, text


def wait_for_another_tag() -> str:
    init_hccl()
    if rank() == 0:
        send(np.zeros(5), 1, tag=3)
        with pytest.raises(CollectiveError):
            recv(np.zeros(1), 1, timeout=60)
        return ""
    with pytest.raises(CollectiveTimeoutError) as raised:
        recv(np.zeros(5), 0, tag=4, timeout=0.2)
    return str(raised.value)


def test_deadline_tells_what_came_instead(rank_pool: RankPool) -> None:
    text = rank_pool.run(wait_for_another_tag, 2)[1]
    assert "rank 1 in recv of 5 float64 (40 bytes), tag 4, from rank 0" in text
    assert "has sent 5 float64 (40 bytes) with tag 3, which nobody has asked for" in text


def interrupted_receive() -> str:
    init_hccl()
    barrier()
    if rank() == 1:
        with pytest.raises(CollectiveError):
            recv(np.zeros(1), 0)
        return ""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(KeyboardInterrupt):
        recv(np.zeros(1), 1)
    return "interrupted"


def test_ctrl_c_ends_a_receive(rank_pool: RankPool) -> None:
    assert rank_pool.run(interrupted_receive, 2)[0] == "interrupted"


def idle_with_open_receives() -> float:
    init_hccl()
    works = [irecv(np.zeros(10), tag=i) for i in range(10)]
    barrier()
    before = time.process_time()
    time.sleep(1)
    used = time.process_time() - before
    assert not any(work.done() for work in works)
    barrier()  # a rank that has left ends what others wait for from it
    return used


def test_open_receives_cost_nothing(rank_pool: RankPool, capsys: pytest.CaptureFixture[str]) -> None:
    used = max(rank_pool.run(idle_with_open_receives, 2))
    with capsys.disabled():
        print(f" [{1e2 * used:.2f} % of a core]", end="")
    assert used < 0.05


def send_more_than_4_gib() -> None:
    init_hccl()
    count = (1 << 32) + 12_345
    if rank() == 0:
        out = np.zeros(count, np.uint8)
        out[[1 << 32, -1]] = 9, 7
        send(out, 1)
    else:
        into = np.empty(count, np.uint8)
        recv(into, 0)
        assert (into[0], into[1 << 32], into[-1]) == (0, 9, 7) and np.count_nonzero(into) == 2


@pytest.mark.slow
def test_more_than_4_gib(rank_pool: RankPool) -> None:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if available < 10 << 30:
        pytest.skip("needs 10 GiB of memory")
    rank_pool.run(send_more_than_4_gib, 2, timeout=300)


def random_messages(rounds: int) -> int:
    """Messages of a plan that all ranks know, among collectives; the memory of half of them is shared."""
    init_hccl()
    me, checked = rank(), 0
    for seed in range(rounds):
        rng = np.random.default_rng(seed)
        works, expected = [], []
        for number in range(200):
            source, destination, tag = rng.integers(0, (world_size(), world_size(), 3)).tolist()
            count = int(rng.choice([0, 3, 10, 11, 500, 4096, 4097, 20_000, 150_000]))
            value = np.float32(1000 * seed + number)
            if source == me:
                out = placed(np.full(count, value), shared=number % 2 == 0)
                works.append(isend(out, destination, tag))
            if destination == me:
                into = np.empty(count, np.float32)
                works.append(irecv(into, source, tag))
                expected.append((into, value, source, works[-1]))
            if number % 50 == 0:
                allreduce(np.ones(1000, np.float32))
        for place in np.random.default_rng([seed, me]).permutation(len(works)):
            works[place].wait(timeout=60)
        for into, value, source, work in expected:
            assert work.source == source and (into == value).all()
        checked += len(expected)
    return checked


def test_random_messages_of_eight_ranks(rank_pool: RankPool) -> None:
    assert sum(rank_pool.run(random_messages, 8, (10,))) == 2000


def traced_messages() -> None:
    init_hccl()
    peer = 1 - rank()
    for count, tag in ((2, 5), (100_000, 6)):
        sendrecv(np.zeros(count), peer, np.zeros(count), send_tag=tag)
    barrier()


def test_trace_shows_messages(rank_pool: RankPool, tmp_path: Path) -> None:
    environment = {"COLLECTIVE_OPS_TRACE": "1", "COLLECTIVE_OPS_TRACE_DIR": str(tmp_path)}
    rank_pool.run(traced_messages, 2, env=environment)
    events = json.loads((tmp_path / "comm_trace.json").read_text())["traceEvents"]
    found = [e for e in events if e.get("cat") == "collective" and e["name"] in ("send", "recv")]
    seen = sorted((e["name"], e["pid"], e["args"]["tag"], e["args"]["bytes"]) for e in found)
    assert seen == [
        (name, each, tag, size)
        for name in ("recv", "send")
        for each in (0, 1)
        for tag, size in ((5, 16), (6, 800_000))
    ]
    for event in found:
        arguments = event["args"]
        source, destination = arguments["Src Rank"], arguments["Dst Rank"]
        assert (source, destination) == (
            (event["pid"], 1 - event["pid"])[:: 1 if event["name"] == "send" else -1]
        )
        assert arguments["algorithm"] == "message" and arguments["status"] == "ok"
        # Moved bytes are counted once, by the receiver.
        read = arguments.get("peer_read_bytes", {})
        assert read == ({str(source): arguments["bytes"]} if event["name"] == "recv" else {})
    tracks = {e["tid"] for e in found}
    named = {e["tid"] for e in events if e.get("name") == "thread_name" and e["args"]["name"] == "messages"}
    assert {int(each) for each in named} == {int(each) for each in tracks}
    assert not tracks & {e["tid"] for e in events if e.get("name") == "barrier"}


def test_example_runs_through_its_stages() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "pipeline_stages.py"
    result = subprocess.run(
        [sys.executable, "-m", "collective_ops", "run", "--nproc_per_node", "4", str(example)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "every micro-batch is right" in result.stdout
