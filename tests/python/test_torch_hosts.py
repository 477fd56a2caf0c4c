"""torch.distributed's backend where a group's ranks are on several hosts: they meet by its store."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import network_hosts
import pytest
from network_hosts import NetworkHosts

if reason := network_hosts.unsupported():
    pytest.skip(reason, allow_module_level=True)
if importlib.util.find_spec("torch") is None or importlib.util.find_spec("collective_ops_torch") is None:
    pytest.skip("no PyTorch, or no backend for it", allow_module_level=True)

SECRET = {"COLLECTIVE_OPS_SECRET": "what only these ranks know"}
START = """
import datetime, os, sys, torch, torch.distributed as dist
try:
    dist.init_process_group("collective_ops", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.barrier()
except dist.DistError as error:
    print(error)
    sys.exit(3)
"""
TRAIN = (
    START
    + """
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(rank)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(16, 8, generator=generator)).square().mean().backward()
    optimizer.step()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
gathered = [torch.empty_like(weights) for _ in range(size)]
dist.all_gather(gathered, weights)
assert all(torch.equal(gathered[0], other) for other in gathered)
# Groups of one host and of both, made in turn by all.
for members in ([0, 1], [2, 3], [0, 3], [1, 2]):
    group = dist.new_group(members)
    if rank in members:
        value = torch.tensor([rank + 1.0])
        dist.all_reduce(value, group=group)
        assert value.item() == sum(members) + 2, (members, value)
dist.destroy_process_group()
print("good")
"""
)


def test_training_and_groups_over_two_hosts() -> None:
    with NetworkHosts(2) as hosts:
        ends = hosts.run_ranks([sys.executable, "-c", TRAIN], ranks_per_host=2, env=SECRET, timeout=150)
        # PyTorch's store has warnings of its own here.
        assert all(end.exit_code == 0 and end.output.endswith("good\n") for end in ends), ends


def test_without_a_secret_all_are_told(tmp_path: Path) -> None:
    with NetworkHosts(2) as hosts:
        ends = hosts.run_ranks([sys.executable, "-c", START], env={"HOME": str(tmp_path)}, timeout=100)
        for end in ends:
            assert end.exit_code != 0 and not end.timed_out, end
            assert re.search(r"rank 1 is on another host than rank 0 .*COLLECTIVE_OPS_SECRET", end.output), (
                end
            )
