"""FSDP2 with gathered parameters in pages that the ranks of a host share: right, counted, and less memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")

import torch.distributed as dist  # noqa: E402
from rank_pool import RankPool  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402
from torch_groups import process_group, rank, world_size  # noqa: E402

WIDTH, BLOCKS, STEPS = 96, 5, 4


def block(width: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(width, width + 3), torch.nn.Tanh(), torch.nn.Linear(width + 3, width)
    )


def model(width: int = WIDTH) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(block(width) for _ in range(BLOCKS)), torch.nn.Linear(width, 4))


def sharded(width: int = WIDTH, reshard: bool | int = True, **options: object) -> torch.nn.Sequential:
    net = model(width)
    mesh = init_device_mesh("cpu", (world_size(),))
    for layer in net[:-1]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, **options)
    fully_shard(net, mesh=mesh, reshard_after_forward=reshard, **options)
    return net


def train(net: torch.nn.Module) -> list[torch.Tensor]:
    """The whole parameters after some steps."""
    generator = torch.Generator().manual_seed(rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        inputs = torch.randn(4, WIDTH, generator=generator)
        net(inputs).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.full_tensor().clone() for parameter in net.parameters()]


def same_as_private(variant: str) -> int:
    from collective_ops_torch.fsdp import share_gathered_parameters

    options: dict[str, object] = {}
    if variant == "bfloat16":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    reshard = variant != "kept"
    with process_group():
        expected = train(sharded(reshard=reshard, **options))
        net = sharded(reshard=reshard, **options)
        assert share_gathered_parameters(net) == BLOCKS + 1
        if variant == "prefetch":
            for layer, after in zip(net[:-2], net[1:-1], strict=True):
                layer.set_modules_to_forward_prefetch([after])
        for got, wanted in zip(train(net), expected, strict=True):
            assert torch.equal(got, wanted)
        net.unshard()
        return len(shared_mappings(net))


def shared_mappings(net: torch.nn.Module) -> set[int]:
    """Addresses of parameters that lie in memory which ranks share."""
    ranges = []
    with open("/proc/self/maps", encoding="ascii") as lines:
        for line in lines:
            if "memfd:collective-ops " in line:
                begin, end = line.split(" ", 1)[0].split("-")
                ranges.append((int(begin, 16), int(end, 16)))
    found = set()
    for parameter in net.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        address = local.data_ptr()
        if any(begin <= address < end for begin, end in ranges):
            found.add(address)
    return found


@pytest.mark.parametrize("variant", ["plain", "bfloat16", "kept", "prefetch"])
def test_the_same_bits_as_with_private_memory(rank_pool: RankPool, variant: str) -> None:
    # unshard() of the root gathers its own two parameters; "kept" has all that the last forward gathered.
    for shared in rank_pool.run(same_as_private, 3, (variant,), timeout=120):
        assert shared >= 2


def pss_kib() -> int:
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def gathered_kib(backend: str, share: bool) -> int:
    """What forward passes add to this rank's share of the host's memory, at most."""
    with process_group(backend, seconds=100):
        net = sharded(width=1024)
        if share:
            from collective_ops_torch.fsdp import share_gathered_parameters

            share_gathered_parameters(net)
        grown = []

        def look(*_: object) -> None:
            dist.barrier()
            grown.append(pss_kib())
            dist.barrier()

        for layer in net[:-1]:
            layer[1].register_forward_hook(look)
        dist.barrier()
        before = pss_kib()
        dist.barrier()
        with torch.no_grad():
            net(torch.randn(2, 1024))
            net(torch.randn(2, 1024))
        return max(grown) - before


def test_memory_per_host_is_less_than_half_of_gloos(rank_pool: RankPool) -> None:
    gloo = sum(rank_pool.run(gathered_kib, 4, ("gloo", False), timeout=200))
    private = sum(rank_pool.run(gathered_kib, 4, ("collective_ops", False), timeout=200))
    shared = sum(rank_pool.run(gathered_kib, 4, ("collective_ops", True), timeout=200))
    print(f"KiB of 4 ranks: gloo {gloo}, private {private}, shared {shared}")
    assert 2 * shared < gloo and 2 * shared < private


def slots_of_readers_that_stay() -> list[bool]:
    """A rank that keeps what it gathered keeps it whole; the others go on, and share again later."""
    from collective_ops_torch._native import SharedSlots

    with process_group():
        slots = SharedSlots(dist.group.WORLD._get_backend(torch.device("cpu")), 4096)
        slots.add()
        kept = slots.take(1)
        tensor = kept.tensor(1024, torch.float32)
        if rank() == 0:
            tensor.fill_(7)
        dist.barrier()
        del kept
        if rank() != 1:
            del tensor
        dist.barrier()
        refused = slots.take(2) is None
        again = slots.take(1) is not None
        dist.barrier()
        if rank() == 1:
            assert (tensor == 7).all()
            del tensor
        dist.barrier()
        taken = slots.take(3) is not None
        return [refused, again, taken]


def test_readers_are_counted_and_nobody_waits(rank_pool: RankPool) -> None:
    assert rank_pool.run(slots_of_readers_that_stay, 3) == [[True, True, True]] * 3


def refusals() -> list[str]:
    from collective_ops_torch.fsdp import share_gathered_parameters

    texts = []
    with process_group():
        net = sharded()
        net(torch.ones(1, WIDTH))
        parts = sharded(reshard=2)
        for wrong in (net, parts):
            with pytest.raises(ValueError) as caught:
                share_gathered_parameters(wrong)
            texts.append(str(caught.value))
    return texts


def test_what_cannot_be_shared_says_why(rank_pool: RankPool) -> None:
    for late, parts in rank_pool.run(refusals, 4):
        assert "before the first forward" in late and "reshard_after_forward=N" in parts
