"""The two wheels, installed in fresh environments: what a user gets from `make wheel` and pip."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("collective_ops_torch._native")
pytest.importorskip("scikit_build_core")

ROOT = Path(__file__).resolve().parents[2]
# Builds go on where the last one stopped (build/TAG, build/torch-TAG); the first takes minutes.
pytestmark = pytest.mark.slow


def run(command: list[str], seconds: int = 120, **environment: str) -> str:
    """What the command printed, seen from a folder and an environment without our sources."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, cwd="/", env={**clean, **environment}
    )
    assert result.returncode == 0, f"{command}: {result.stdout[-3000:]}{result.stderr[-3000:]}"
    return result.stdout


def pip(*arguments: str, seconds: int = 120) -> None:
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], seconds)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each distribution's wheel, by its name."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, ROOT / "python/pytorch"):
        flags = ("--no-build-isolation", "--no-deps", "--no-index", "-w", str(folder))
        pip("wheel", "-q", *flags, str(source), seconds=1200)
    return {wheel.name.split("-")[0]: wheel for wheel in folder.iterdir()}


def environment(folder: Path, *wheels: Path) -> Path:
    """The interpreter of a new virtual environment that holds these wheels and nothing else."""
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / "bin/python"
    pip("--python", str(python), "install", "-q", "--no-deps", "--no-index", *map(str, wheels))
    return python


def test_each_wheel_holds_its_own_package(wheels: dict[str, Path]) -> None:
    assert set(wheels) == {"collective_ops", "collective_ops_torch"}
    for name, wheel in wheels.items():
        files = zipfile.ZipFile(wheel).namelist()
        assert {file.split("/")[0] for file in files if ".dist-info/" not in file} == {name}
        native = {Path(file).name.split(".")[0] for file in files if ".so" in Path(file).suffixes}
        wanted = {
            "collective_ops": {"_core", "_analysis", "libcollective_ops"},
            "collective_ops_torch": {"_torch"},
        }
        assert native == wanted[name]
        assert wheel.stat().st_size < 16 << 20


def test_the_core_alone_needs_no_pytorch(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", wheels["collective_ops"])
    script = """
import sys
from array import array
import collective_ops
collective_ops.init_hccl(rank=0, world_size=1)
values = array("f", [1, 2])
collective_ops.allreduce(values)
collective_ops.finalize()
print(collective_ops.__file__, values.tolist(), "torch" in sys.modules)
"""
    file, *rest = run([str(python), "-c", script]).split(maxsplit=1)
    assert Path(file).is_relative_to(tmp_path) and rest == ["[1.0, 2.0] False\n"]
    command = str(tmp_path / "venv/bin/collective-ops")
    assert "collective-ops" in run([command, "--version"])
    table = run([command, "perf", "all_reduce", "-p", "2", "-b", "8", "-e", "8", "-n", "2", "-w", "1"])
    assert "success" in table


def test_pytorch_finds_the_backend_without_an_import(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "venv", *wheels.values())
    packages = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    # Behind the environment's own packages, so that these wheels come before what was built in the sources.
    (packages / "pytorch.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    script = f"""
import os, sys
import torch, torch.distributed as dist
loaded = sorted(name for name in sys.modules if name.startswith("collective_ops"))
rank = int(sys.argv[1])
dist.init_process_group("cpu:collective_ops", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
number = torch.tensor([rank + 1.0])
dist.all_reduce(number)
dist.destroy_process_group()
import collective_ops, collective_ops_torch
from collective_ops_torch import _native
print(loaded, number.item(), *(os.path.relpath(module.__file__, sys.prefix).split("/")[0]
      for module in (collective_ops, collective_ops_torch, _native)))
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ranks = [
        subprocess.Popen(
            [str(python), "-c", script, str(rank)],
            cwd="/",
            env=clean,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            output, errors = process.communicate(timeout=120)
            # The import of PyTorch loads one Python file of ours, and nothing native.
            assert output == "['collective_ops_torch'] 3.0 lib lib lib\n", output + errors
    finally:
        for process in ranks:
            process.kill()
