"""Arguments that cannot be used: each error names the argument and what it may be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import collective_ops
import numpy as np
import pytest
from collective_ops import InvalidArgumentError, _waiting
from rank_pool import RankPool

PACKAGE_PARENT = str(Path(collective_ops.__path__[0]).parent)


def mistaken_arguments() -> None:
    collective_ops.init_hccl()
    values = np.ones(4, np.float32)
    for keywords, text in [
        ({"op": "summ"}, 'op="summ" is not known; there are sum, avg, prod, min, max, band, bor, bxor'),
        ({"op": None}, "op=None is not known; there are sum"),
        ({"op": 3}, "op=3 is not known; there are sum"),
        ({"timeout": "10"}, 'timeout="10" is no number of seconds'),
        ({"timeout": -1}, "timeout=-1: seconds from 0"),
    ]:
        with pytest.raises(InvalidArgumentError, match=re.escape(text)):
            collective_ops.allreduce(values, **keywords)
    for root in ("0", 1.0, 1 << 40, [0]):
        with pytest.raises(InvalidArgumentError, match="root=.*: a whole number, of a rank of this group"):
            collective_ops.broadcast(values, root=root)
    with pytest.raises(InvalidArgumentError, match="root 2 is not a rank"):
        collective_ops.broadcast(values, root=2)
    for shape in ("3", 2.5, (1, "2")):
        with pytest.raises(InvalidArgumentError, match="a whole number or several"):
            collective_ops.empty(shape)
    assert collective_ops.empty(np.int64(3)).shape == (3,)
    assert (values == 1).all()


def test_mistaken_arguments_are_named(rank_pool: RankPool) -> None:
    rank_pool.run(mistaken_arguments, 2)


def operations_of_pytorch() -> None:
    from torch.distributed import ReduceOp

    collective_ops.init_hccl()
    rank, world_size = collective_ops.rank(), collective_ops.world_size()
    for op, expected in [
        (ReduceOp.SUM, sum(range(world_size))),
        (ReduceOp.AVG, sum(range(world_size)) / world_size),
        (ReduceOp.PRODUCT, 0),
        (ReduceOp.MAX, world_size - 1),
        ("Sum", sum(range(world_size))),
        ("MAX", world_size - 1),
        ("mean", sum(range(world_size)) / world_size),
    ]:
        assert collective_ops.allreduce(np.full(3, float(rank)), op).tolist() == [expected] * 3
    with pytest.raises(InvalidArgumentError, match="RedOpType.PREMUL_SUM.* needs a factor"):
        collective_ops.allreduce(np.ones(3), ReduceOp.PREMUL_SUM)
    with pytest.raises(InvalidArgumentError, match="premul_sum.* needs a factor"):
        collective_ops.allreduce(np.ones(3), "premul_sum")


def test_operations_as_pytorch_names_them(rank_pool: RankPool) -> None:
    pytest.importorskip("torch")
    rank_pool.run(operations_of_pytorch, 3)


def test_tensors_without_usable_memory_say_what_to_do() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidArgumentError, match=r"sparse.*\.to_dense\(\).*Embedding\(sparse=False\)"):
        collective_ops._core.describe_array(torch.eye(3).to_sparse())
    with pytest.raises(InvalidArgumentError, match="a meta tensor, which has no memory"):
        collective_ops._core.describe_array(torch.empty(3, device="meta"))


@pytest.mark.parametrize(
    "keywords, text",
    [
        ({"rank": "zero", "world_size": 1}, "init_hccl: rank='zero' is no whole number"),
        ({"rank": 0, "world_size": 1.5}, "init_hccl: world_size=1.5 is no whole number"),
        ({"rank": 0, "world_size": 1, "device_id": "cuda:0"}, "device_id='cuda:0' is no whole number"),
        ({"rank": 0, "world_size": 1, "job_id": 7}, "job_id=7 is a int; give a str"),
        ({"rank": 0, "world_size": 1, "connect_timeout": "1"}, 'connect_timeout="1" is no number'),
    ],
)
def test_mistaken_arguments_of_init(keywords: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(text)):
        collective_ops.init_hccl(**keywords)
    assert not collective_ops.is_initialized()


# --- A start that takes long -----------------------------------------------------------------------


def wait_for_one_that_comes_late() -> None:
    _waiting.PATIENCE_S = 0.2
    if os.environ["RANK"] == "1":
        deadline = time.monotonic() + 60
        while "waits for" not in Path(os.environ["SEEN"]).read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
    else:  # its standard error is a file, so that rank 1 can wait for the line
        descriptor = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_APPEND)
        os.dup2(descriptor, 2)
    collective_ops.init_hccl()
    collective_ops.barrier()


def test_waiting_at_the_start_is_said_once(rank_pool: RankPool, tmp_path: Path) -> None:
    seen = tmp_path / "stderr"
    seen.touch()
    job = f"late-{os.getpid()}"
    rank_pool.run(wait_for_one_that_comes_late, 2, env={"SEEN": str(seen), "COLLECTIVE_OPS_JOB_ID": job})
    assert seen.read_text() == f"collective_ops: rank 0 of 2 waits for rank 1 (job {job})\n"


def test_a_quick_start_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    line = _waiting.WaitingLine(0, 2, None)
    line()
    assert capsys.readouterr().err == ""
    assert _waiting.missing_ranks(2) == []  # this process is no rank of a job


# --- A package that is not built -------------------------------------------------------------------


def test_a_package_that_is_not_built_says_so(tmp_path: Path) -> None:
    for source in Path(collective_ops.__path__[0]).glob("*.py"):
        target = tmp_path / "collective_ops" / source.name
        target.parent.mkdir(exist_ok=True)
        target.write_text(source.read_text())
    run = subprocess.run(
        [sys.executable, "-S", "-c", "import collective_ops"],  # -S: without an editable installation
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 1
    assert "ImportError: collective_ops is not built for this Python" in run.stderr
    assert "make build" in run.stderr and "circular" not in run.stderr
