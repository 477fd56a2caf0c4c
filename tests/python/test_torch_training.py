"""What PyTorch builds on process groups: DDP, FSDP2, DTensor, functional collectives, profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")

import torch.distributed as dist  # noqa: E402
from rank_pool import RankPool  # noqa: E402
from torch_groups import process_group, rank, world_size  # noqa: E402

STEPS = 4


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 33),
        torch.nn.ReLU(),
        torch.nn.Linear(33, 20),
        torch.nn.ReLU(),
        torch.nn.Linear(20, 4),
    )


def batches(ranks: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8 * ranks, 16, generator=generator), torch.randn(8 * ranks, 4, generator=generator))
        for _ in range(STEPS)
    ]


def train(net: torch.nn.Module, share: slice) -> list[torch.Tensor]:
    """The parameters after some steps on this rank's share of the batches."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in batches(world_size()):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(inputs[share]), targets[share]).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def own_share() -> slice:
    return slice(8 * rank(), 8 * rank() + 8)


def close(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


def ddp(variant: str) -> dict[str, int]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    alone = train(model(), slice(None))
    options = {"static_graph": {"static_graph": True}, "unused": {"find_unused_parameters": True}}.get(
        variant, {}
    )
    with process_group():
        net = DistributedDataParallel(model(), bucket_cap_mb=0.001, gradient_as_bucket_view=True, **options)
        if variant == "hook":
            net.register_comm_hook(None, default_hooks.allreduce_hook)
        if variant == "no_sync":
            with net.no_sync():
                net(torch.zeros(2, 16)).sum().backward()
            net.zero_grad()
        close(train(net, own_share()), alone)
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        return backend.counters()


@pytest.mark.parametrize("variant", ["plain", "static_graph", "unused", "hook", "no_sync"])
def test_ddp_trains_as_one_process(rank_pool: RankPool, variant: str) -> None:
    rank_pool.run(ddp, 2, (variant,))


@pytest.mark.parametrize("disabled", [None, "0", "1"])
def test_ddp_reduces_where_the_gradients_lie(rank_pool: RankPool, disabled: str | None) -> None:
    """By default, and unless the program has told PyTorch not to."""
    for counters in rank_pool.run(ddp, 2, ("plain",), env={"DDP_DISABLE_COMM_MEM": disabled}):
        assert (counters["direct_calls"] > 0) == (disabled != "1")


def ddp_join() -> list[float]:
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    with process_group():
        torch.manual_seed(0)
        net = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with Join([net]):
            for _ in range(3 + 2 * rank()):
                net(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return net.module.weight.flatten().tolist()


def test_ddp_with_uneven_inputs(rank_pool: RankPool) -> None:
    first, second = rank_pool.run(ddp_join, 2)
    assert first == second


def sparse_gradients() -> None:
    from torch.nn.parallel import DistributedDataParallel

    with process_group():
        torch.manual_seed(0)
        net = DistributedDataParallel(torch.nn.Embedding(10, 3, sparse=True))
        net(torch.tensor([rank(), 7])).sum().backward()
        gradient = net.module.weight.grad.to_dense()
        assert gradient[:, 0].tolist() == [0.5, 0.5, 0, 0, 0, 0, 0, 1.0, 0, 0]


def test_sparse_gradients(rank_pool: RankPool) -> None:
    rank_pool.run(sparse_gradients, 2)


def fsdp(variant: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    alone = train(model(), slice(None))
    with process_group():
        mesh = init_device_mesh("cpu", (world_size(),))
        net = model()
        options = {}
        if variant == "bfloat16":
            options["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            )
        if variant == "offload":
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
        for layer in net:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh, **options)
        fully_shard(net, mesh=mesh, **options)
        if variant == "group_memory":
            for module in net.modules():
                if hasattr(module, "set_allocate_memory_from_process_group_for_comm"):
                    module.set_allocate_memory_from_process_group_for_comm(True)
        if variant == "factor":
            net.set_gradient_divide_factor(float(world_size()))
        trained = [parameter.full_tensor() for parameter in train(net, own_share())]
        if variant == "bfloat16":
            torch.testing.assert_close(trained, alone, rtol=0.1, atol=0.02)
        else:
            close(trained, alone)


@pytest.mark.parametrize("variant", ["plain", "bfloat16", "offload", "group_memory", "factor"])
def test_fsdp2_trains_as_one_process(rank_pool: RankPool, variant: str) -> None:
    rank_pool.run(fsdp, 2, (variant,))


def fsdp_memory() -> dict[str, int]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    with process_group():
        mesh = init_device_mesh("cpu", (world_size(),))
        net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
        for layer in net:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        for module in net.modules():
            if isinstance(module, FSDPModule):
                module.set_allocate_memory_from_process_group_for_comm(True)
        net(torch.ones(4, 256)).sum().backward()
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        return backend.counters()


def test_fsdp2_in_memory_of_the_group_copies_nothing(rank_pool: RankPool) -> None:
    for counters in rank_pool.run(fsdp_memory, 2):
        assert counters["direct_calls"] == counters["calls"] > 0
        assert counters["copied_bytes"] == 0


def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with process_group():
        mesh = init_device_mesh("cpu", (world_size(),))
        net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
        torch.manual_seed(0)
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter)
        inputs = torch.randn(6, 16)
        expected = net(inputs)
        parallel = parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        torch.testing.assert_close(parallel(inputs), expected, rtol=1e-4, atol=1e-4)
        whole = torch.arange(24.0).view(6, 4)
        sharded = distribute_tensor(whole, mesh, [Shard(0)])
        assert isinstance(sharded, DTensor)
        assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
        assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
        assert sharded.sum().full_tensor().item() == whole.sum().item()


def test_tensor_parallel(rank_pool: RankPool) -> None:
    rank_pool.run(tensor_parallel, 2)


def functional() -> None:
    import torch.distributed._functional_collectives as functional_collectives

    n = world_size()
    with process_group():
        group = dist.group.WORLD

        def compute(x: torch.Tensor) -> torch.Tensor:
            total = functional_collectives.all_reduce(x, "sum", group)
            whole = functional_collectives.all_gather_tensor(total, 0, group)
            return functional_collectives.reduce_scatter_tensor(whole, "sum", 0, group) + 1

        x = torch.full((4,), float(rank() + 1))
        expected = [float(n * n * (n + 1) / 2 + 1)] * 4
        assert compute(x).tolist() == expected
        compiled = torch.compile(compute, backend="aot_eager", fullgraph=True)
        assert compiled(x).tolist() == expected


def test_functional_collectives_and_compile(rank_pool: RankPool) -> None:
    rank_pool.run(functional, 2)


def checkpoint(folder: str, asynchronous: bool) -> None:
    import torch.distributed.checkpoint as checkpointing
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor, zeros

    with process_group():
        mesh = init_device_mesh("cpu", (world_size(),))
        whole = torch.arange(40.0).view(10, 4)
        state = {"x": distribute_tensor(whole, mesh, [Shard(0)])}
        if asynchronous:
            own = dist.new_group(list(range(world_size())))  # its thread makes calls beside ours
            saved = checkpointing.async_save(state, checkpoint_id=folder, process_group=own)
            for _ in range(20):  # training goes on meanwhile
                dist.all_reduce(torch.ones(1000))
            saved.result()
        else:
            checkpointing.save(state, checkpoint_id=folder)
        loaded = {"x": zeros((10, 4), device_mesh=mesh, placements=[Shard(1)])}
        checkpointing.load(loaded, checkpoint_id=folder)
        assert torch.equal(loaded["x"].full_tensor(), whole)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_checkpoint_of_a_sharded_tensor(rank_pool: RankPool, asynchronous: bool, tmp_path: Path) -> None:
    rank_pool.run(checkpoint, 2, (str(tmp_path), asynchronous))


def pipeline(schedule: str) -> None:
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
    )

    n, me = world_size(), rank()
    interleaved = schedule == "interleaved"
    count = 2 * n if interleaved else n  # of stages; rank r has r, and n + r
    with process_group():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(8, 8) for _ in range(count)]
        inputs, targets = torch.randn(12, 8), torch.randn(12, 8)
        whole = torch.nn.Sequential(*layers)
        torch.nn.functional.mse_loss(whole(inputs), targets).backward()
        own = list(range(me, count, n))
        expected = [p.grad.clone() for stage in own for p in layers[stage].parameters()]
        whole.zero_grad()
        stages = [PipelineStage(layers[stage], stage, count, torch.device("cpu")) for stage in own]
        kinds = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}
        # Interleaved schedules go round by round, with as many microbatches in each as there are ranks.
        microbatches = 2 * n if interleaved else 4
        steps = kinds[schedule](
            stages if interleaved else stages[0],
            n_microbatches=microbatches,
            loss_fn=torch.nn.functional.mse_loss,
        )
        if me == 0:
            steps.step(inputs)
        elif me == n - 1:
            steps.step(target=targets, losses=[])
        else:
            steps.step()
        gradients = [p.grad for stage in own for p in layers[stage].parameters()]
        torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_pipeline(rank_pool: RankPool, schedule: str) -> None:
    rank_pool.run(pipeline, 3, (schedule,))


def profiled(file: str) -> list[dict[str, object]]:
    with process_group():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(torch.ones(5, dtype=torch.bfloat16))
            dist.all_gather_single(torch.ones(4 * world_size()), torch.ones(4), async_op=True).wait()
        profile.export_chrome_trace(f"{file}{rank()}.json")
        events = json.loads(Path(f"{file}{rank()}.json").read_text())["traceEvents"]
        names = [event.get("name") for event in events]
        assert "collective_ops:all_reduce" in names and "collective_ops:_all_gather_base" in names
        return [event["args"] for event in events if event.get("name") == "record_param_comms"]


def test_profiles_carry_what_was_called(rank_pool: RankPool, tmp_path: Path) -> None:
    for records in rank_pool.run(profiled, 2, (str(tmp_path / "trace"),)):
        assert [record["Collective name"] for record in records] == ["allreduce", "_allgather_base"]
        assert records[0]["dtype"] == "BFloat16" and records[0]["In msg nelems"] == 5
        assert records[1]["Out msg nelems"] == 8 and records[1]["Group size"] == 2
        assert records[0]["Process Group Name"] and "[0, 1]" in str(records[0]["Process Group Ranks"])


def profiled_messages(file: str) -> list[tuple[object, object]]:
    with process_group():
        pair, me, message = dist.new_group([1, 2]), rank(), torch.ones(5)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            if me == 0:
                dist.send(message, 2)
            elif me == 1:
                dist.send(message, group_dst=1, group=pair)
            else:
                dist.recv(message, 0)
                dist.recv(message, group_src=0, group=pair)
        profile.export_chrome_trace(f"{file}{me}.json")
        events = json.loads(Path(f"{file}{me}.json").read_text())["traceEvents"]
        records = [event["args"] for event in events if event.get("name") == "record_param_comms"]
        return [(record.get("Src Rank"), record.get("Dst Rank")) for record in records]


def test_profiles_name_the_peer_of_a_message(rank_pool: RankPool, tmp_path: Path) -> None:
    """As the rank of the job that it is, in a group too."""
    told = rank_pool.run(profiled_messages, 3, (str(tmp_path / "trace"),))
    assert told == [[(None, 2)], [(None, 2)], [(0, None), (1, None)]]


def shared_memory() -> dict[str, int]:
    with process_group():
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        assert backend.supports_tensor_alloc(torch.device("cpu"))
        x = backend.allocate_tensor(300_000, dtype=torch.float32, device=torch.device("cpu"))
        x.fill_(1)
        before = backend.counters()["copied_bytes"]
        dist.all_reduce(x)
        assert x.eq(world_size()).all()
        after = backend.counters()
        after["copied_bytes"] -= before
        return after


def test_tensors_in_shared_memory_are_reduced_in_place(rank_pool: RankPool) -> None:
    for counters in rank_pool.run(shared_memory, 2):
        assert counters["direct_calls"] == 1 and counters["copied_bytes"] == 0
