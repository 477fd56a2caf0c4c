"""What README.md shows a newcomer runs as it stands there: the training script, started in each way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import collective_ops
import pytest

PACKAGE_PARENT = str(Path(collective_ops.__path__[0]).parent)
README = Path(__file__).parents[2] / "README.md"
RANKS = 2

# What the reader's own script has before the lines that README shows, and something to compare after them.
BEFORE = """
import os
import torch
torch.set_num_threads(1)
rank = int(os.environ.get("RANK", 0))
torch.manual_seed(rank)
model = torch.nn.Linear(8, 3)
unused = torch.nn.Linear(2, 2)
model.add_module("unused", unused)
model.forward = lambda x: torch.nn.functional.linear(x, model.weight, model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_function = torch.nn.CrossEntropyLoss()
loader = [(torch.randn(4, 8), torch.randint(0, 3, (4,))) for _ in range(3)]
"""
AFTER = """
import collective_ops
sums = collective_ops.allgather(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
assert (sums == sums[0]).all(), "ranks differ after training"
assert unused.weight.grad is None
with open(f"rank_{collective_ops.rank()}_of_{collective_ops.world_size()}", "w") as file:
    file.write(repr(sums[0].double().sum().item()))
"""


def block(language: str, heading: str) -> str:
    """The first code block of that language below a heading."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", README.read_text(), re.M | re.S)
    assert section, heading
    found = re.search(rf"^```{language}\n(.*?)^```", section.group(1), re.M | re.S)
    assert found, heading
    return found.group(1)


def start_commands() -> list[str]:
    lines = block("", "Start the ranks").splitlines()
    assert [line.split()[0] for line in lines] == ["collective-ops", "torchrun", "for"]
    smaller = [line.replace("{0..7}", f"{{0..{RANKS - 1}}}") for line in lines]
    return [re.sub(r"\b8\b", str(RANKS), line) for line in smaller]


@pytest.mark.parametrize("number", [0, 1, 2, 3], ids=["launcher", "torchrun", "shell", "alone"])
def test_the_training_script(number: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(BEFORE + block("python", "In a training script") + AFTER)
    command = [*start_commands(), "python train.py"][number]
    world_size = 1 if number == 3 else RANKS
    dropped = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "DEVICE_ID", "DEVICE_IDS", "COLLECTIVE_OPS_JOB_ID")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["PYTHONPATH"] = PACKAGE_PARENT
    run = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180
    )
    assert run.returncode == 0, (command, run.stdout, run.stderr)
    left = {path.name: path.read_text() for path in tmp_path.glob("rank_*")}
    assert sorted(left) == [f"rank_{rank}_of_{world_size}" for rank in range(world_size)], run.stderr
    assert len(set(left.values())) == 1
