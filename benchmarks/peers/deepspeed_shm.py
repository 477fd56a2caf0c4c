"""DeepSpeed's all-reduce in shared memory, as a peer of the PyTorch backend's benchmark.

    python benchmarks/peers/deepspeed_shm.py MODULE.so    gets the sources from PyPI and builds them beside it

`scripts/bench-peers deepspeed` (or `make bench-peers`) does that in build/peers/deepspeed, where the sources
stay. It knows one group for a process, sums alone, of float32, bfloat16 and float16; who waits spins without
end and yields to nobody, so it is measured where every rank has a core.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

VERSION = "0.19.8"
MODULE = "deepspeed_shm_comm"
FILE = Path(__file__).resolve().parents[2] / f"build/peers/deepspeed/{MODULE}.so"
SOURCES = ("shm_interface.cpp", "shm.cpp")


def main() -> int:
    parser = argparse.ArgumentParser(description="Get DeepSpeed's shared-memory all-reduce, and build it.")
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    file = parser.parse_args().file
    objects = file.parent / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    build(sources(file.parent), objects)
    shutil.copy(objects / f"{MODULE}.so", file)
    return 0


def sources(folder: Path) -> Path:
    """Where the sources lie; fetched unless they are there. No wheel of it has been published."""
    unpacked = folder / f"deepspeed-{VERSION}/csrc/cpu/comm"
    if not unpacked.is_dir():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        flags = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", str(folder)]
        subprocess.run([*pip, *flags, f"deepspeed=={VERSION}"], check=True)
        with tarfile.open(folder / f"deepspeed-{VERSION}.tar.gz") as archive:
            wanted = f"deepspeed-{VERSION}/csrc/cpu/comm/"
            for member in archive.getmembers():
                if member.name.startswith(wanted) and ".." not in member.name and member.isfile():
                    archive.extract(member, folder)
    return unpacked


def build(source: Path, folder: Path) -> None:
    """Its own flags are -O2 -fopenmp."""
    from torch.utils.cpp_extension import load

    (folder / "lock").unlink(
        missing_ok=True
    )  # of a build that was ended; the next would wait for it for ever
    load(
        MODULE,
        [str(source / name) for name in SOURCES],
        extra_cflags=["-O3", "-march=native", "-fopenmp", "-w"],
        extra_ldflags=["-fopenmp", "-lrt"],
        build_directory=str(folder),
    )


def connect(ranks: int, rank: int, file: Path = FILE) -> Callable[[torch.Tensor], None] | str:
    """An all-reduce in place, or why there is none. Every rank of the world calls it, whose group exists."""
    cores = len(os.sched_getaffinity(0))
    if ranks > cores:
        return f"its waiting ranks yield to nobody, and there are {cores} cores for {ranks} ranks"
    if not file.exists():
        return "not built: scripts/bench-peers deepspeed"
    spec = importlib.util.spec_from_file_location(MODULE, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.vector_kernel_level() < 2:
        return "its sums of bfloat16 need AVX-512"
    os.environ["LOCAL_SIZE"] = str(ranks)  # it asks for it, to see that all are on one host
    module.initialize(ranks, rank)
    dist.barrier()
    # All have mapped it. It never removes its files, each of 66 MiB.
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    Path(f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}").unlink()
    return torch.ops.deepspeed.inference_all_reduce_


if __name__ == "__main__":
    sys.exit(main())
