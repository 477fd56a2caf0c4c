"""init_hccl inside a process group of the backend: one sequence of calls, whoever makes them."""

from __future__ import annotations

import os
import signal
import time

import collective_ops
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")

import torch.distributed as dist  # noqa: E402
from rank_pool import RankPool  # noqa: E402
from torch_groups import process_group, rank, world_size  # noqa: E402


def calls() -> int:
    return dist.group.WORLD._get_backend(torch.device("cpu")).counters()["calls"]


def both_sides() -> list[float]:
    with process_group():
        collective_ops.init_hccl()
        assert (collective_ops.rank(), collective_ops.world_size()) == (rank(), world_size())
        before = calls()
        number = torch.tensor([1.0 + rank()])
        works = []
        for _ in range(20):  # neither side waits for the other's calls before it goes on
            works.append(dist.all_reduce(number, async_op=True))
            collective_ops.allreduce(number, op="max")
            works.append(collective_ops.allreduce(number, op="avg", async_op=True))
            dist.all_reduce(number, dist.ReduceOp.AVG)
        for work in works:
            work.wait()
        assert calls() - before == 80 and collective_ops.counters() == dist_counters()
        before_end = number.item()
        collective_ops.finalize()
        dist.all_reduce(number)  # the process group goes on
        return [before_end, number.item()]


def dist_counters() -> dict[str, int]:
    return dist.group.WORLD._get_backend(torch.device("cpu")).counters()


def test_calls_of_both_sides_are_one_sequence(rank_pool: RankPool) -> None:
    ranks = 2
    for middle, end in rank_pool.run(both_sides, ranks):
        assert middle == 3.0 * ranks**19 and end == middle * ranks


def ddp_beside_a_bucket() -> list[torch.Tensor]:
    """A module by DDP, another one's gradients by GradientBucket, in one backward."""
    from torch.nn.parallel import DistributedDataParallel

    def parts() -> tuple[torch.nn.Module, torch.nn.Module]:
        torch.manual_seed(0)
        return torch.nn.Linear(20, 30), torch.nn.Linear(30, 7)

    def inputs(step: int, share: slice) -> torch.Tensor:
        return torch.randn(8, 20, generator=torch.Generator().manual_seed(step))[share]

    first, second = parts()
    for step in range(3):  # alone, on everything
        second(first(inputs(step, slice(None)))).pow(2).mean().backward()
        for module in (first, second):
            for parameter in module.parameters():
                parameter.data -= 0.1 * parameter.grad
                parameter.grad = None
    expected = [parameter.detach().clone() for module in (first, second) for parameter in module.parameters()]
    with process_group():
        collective_ops.init_hccl(timeout=60)
        first, second = parts()
        wrapped = DistributedDataParallel(first, bucket_cap_mb=0.001)
        bucket = collective_ops.GradientBucket(reduce_op="avg")
        share = slice(8 // world_size() * rank(), 8 // world_size() * (rank() + 1))
        for step in range(3):
            second(wrapped(inputs(step, share))).pow(2).mean().backward()
            for parameter in second.parameters():
                bucket.add(parameter.grad)
            bucket.allreduce()
            bucket.clear()
            for module in (first, second):
                for parameter in module.parameters():
                    parameter.data -= 0.1 * parameter.grad
                    parameter.grad = None
        got = [parameter.detach() for module in (first, second) for parameter in module.parameters()]
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        collective_ops.finalize()
        return got


def test_ddp_beside_a_gradient_bucket(rank_pool: RankPool) -> None:
    results = rank_pool.run(ddp_beside_a_bucket, 4)
    for other in results[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(results[0], other, strict=True))


def mismatch() -> str:
    with process_group():
        collective_ops.init_hccl()
        try:
            if rank() == 0:
                dist.all_reduce(torch.ones(4))
            else:
                collective_ops.allreduce(torch.ones(5))
        except (dist.DistBackendError, collective_ops.errors.MismatchError) as error:
            return str(error)
    return "nothing noticed"


def test_ranks_that_differ_are_told_on_both_sides(rank_pool: RankPool) -> None:
    for text in rank_pool.run(mismatch, 2):
        assert "all_reduce of 4 float32" in text and "all_reduce of 5 float32" in text


def other_identities() -> None:
    with process_group():
        with pytest.raises(
            collective_ops.errors.InvalidArgumentError, match="of 7, but this process is rank"
        ):
            collective_ops.init_hccl(rank(), 7)
        before = calls()
        collective_ops.init_hccl(job_id=os.environ["COLLECTIVE_OPS_JOB_ID"])  # a job of its own
        collective_ops.allreduce(torch.ones(1))
        assert calls() == before
        collective_ops.finalize()


def test_a_job_of_its_own_beside_the_process_group(rank_pool: RankPool) -> None:
    rank_pool.run(other_identities, 2)


def outlives() -> float:
    number = torch.ones(1)
    with process_group():
        collective_ops.init_hccl()
        collective_ops.allreduce(number)
    collective_ops.allreduce(number)  # this side has not left yet
    collective_ops.finalize()
    return number.item()


def test_each_side_may_leave_first(rank_pool: RankPool) -> None:
    assert rank_pool.run(outlives, 2) == [4.0, 4.0]


def interrupted() -> float:
    """Seconds until a signal's handler ends a wait for a rank that does not come."""

    class Stop(Exception):
        pass

    def handler(*_: object) -> None:
        raise Stop

    with process_group():
        collective_ops.init_hccl()
        dist.barrier()
        if rank() == 1:
            with pytest.raises(Exception, match=r"rank 0|handler"):
                time.sleep(1)
                collective_ops.barrier()
            return 0.0
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begun = time.monotonic()
        with pytest.raises(Stop):
            collective_ops.allreduce(torch.ones(1))
        return time.monotonic() - begun


def test_signals_end_waits(rank_pool: RankPool) -> None:
    assert rank_pool.run(interrupted, 2)[0] < 20
