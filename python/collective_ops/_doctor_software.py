"""What is installed: versions and devices, for `collective-ops doctor`."""

from __future__ import annotations

import importlib.util
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from . import _core
from ._finding import FAIL, OK, WARN, Finding

# PyTorch is looked at from another process: an import that hangs or crashes is a finding, not our end.
_TORCH_PROBE = """
import json, sys
found = {}
try:
    import torch
    found["torch"] = torch.__version__
except BaseException as error:
    found["torch_error"] = f"{type(error).__name__}: {error}"
else:
    try:
        import torch_npu
        found["torch_npu"] = torch_npu.__version__
    except ModuleNotFoundError as error:
        if error.name != "torch_npu":
            found["torch_npu_error"] = f"{type(error).__name__}: {error}"
    except BaseException as error:
        found["torch_npu_error"] = f"{type(error).__name__}: {error}"
    for kind in ("npu", "cuda"):
        module = getattr(torch, kind, None)
        try:
            found[kind] = module.device_count() if module is not None and module.is_available() else 0
        except BaseException as error:
            found[kind], found[kind + "_error"] = 0, f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(found))
"""
TORCH_TIMEOUT_S = 120

CANN_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
# Beneath the toolkit's folder, the most telling first.
CANN_VERSION_FILES = (
    "*-linux/ascend_toolkit_install.info",
    "*-linux/ascend_nnae_install.info",
    "ascend_toolkit_install.info",
    "version.cfg",
    "compiler/version.info",
    "runtime/version.info",
    "version.info",
)


def software(environ: Mapping[str, str], root: Path = Path("/")) -> Iterator[Finding]:
    section = "software"
    yield Finding(section, "collective_ops", OK, f"{_core.__version__}, kernels for {_core.kernel_target()}")
    old = sys.version_info < (3, 10)
    advice = "Python 3.10 or newer is needed" if old else ""
    yield Finding(section, "Python", FAIL if old else OK, platform.python_version(), advice)
    yield Finding(section, "Linux", OK, f"{platform.release()} on {platform.machine()}")
    yield parts()
    yield from _pytorch(torch_probe())
    yield _mindspore()
    yield cann(environ, root)
    yield driver(root)


# What stands beside the core, and what is missing without it.
PARTS = {
    "_perf": "collective-ops perf",
    "_topo": "collective-ops topo",
    "_tune": "collective-ops tune",
    "_analysis": "collective-ops analyze",
    "_torch": 'init_process_group("collective_ops")',
}


def missing_parts() -> list[str]:
    here = Path(__file__).parent
    backend = importlib.util.find_spec("collective_ops_torch")
    backend_folder = Path(backend.origin).parent if backend is not None and backend.origin else here

    def is_there(name: str) -> bool:
        folder = backend_folder if name == "_torch" else here
        return any(file.suffix in ("", ".so") for file in folder.glob(f"{name}*"))

    return [name for name in PARTS if not is_there(name)]


def parts(missing: Sequence[str] | None = None) -> Finding:
    missing = missing_parts() if missing is None else missing
    if not missing:
        return Finding("software", "parts", OK, "perf, topo, tune, analyze and the PyTorch backend are there")
    lost = ", ".join(PARTS[name] for name in missing)
    # Who does not use PyTorch does not miss its backend.
    advice = "`make build` makes them; of a wheel, install it again" + (
        ", and collective-ops-torch for the backend" if "_torch" in missing else ""
    )
    return Finding("software", "parts", OK if missing == ["_torch"] else WARN, f"not there: {lost}", advice)


def torch_probe(executable: str = sys.executable, timeout: float = TORCH_TIMEOUT_S) -> dict[str, object]:
    """Versions and numbers of devices as PyTorch tells them, or `torch_error`."""
    command = [executable, "-c", _TORCH_PROBE]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return {"torch_error": f"the import did not end within {timeout:.0f} s"}
    except OSError as error:
        return {"torch_error": str(error)}
    try:
        return json.loads(run.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        tail = (run.stderr.strip().splitlines() or ["no output"])[-1]
        return {"torch_error": f"the import ended with exit code {run.returncode}: {tail}"}


def _pytorch(found: dict[str, object]) -> Iterator[Finding]:
    section = "software"
    error = found.get("torch_error")
    if error is None:
        yield Finding(section, "PyTorch", OK, str(found["torch"]))
    elif str(error).startswith("ModuleNotFoundError: No module named 'torch'"):
        yield Finding(
            section, "PyTorch", OK, "not installed", "only needed to pass tensors: pip install torch"
        )
    else:
        yield Finding(
            section, "PyTorch", FAIL, f"cannot be imported: {error}", 'see what python -c "import torch" says'
        )
    yield _torch_npu(found)
    for kind, name in (("npu", "NPUs"), ("cuda", "CUDA devices")):
        problem = found.get(f"{kind}_error")
        if problem:
            yield Finding(
                section, name, WARN, f"cannot be counted: {problem}", "check the driver: npu-smi info"
                if kind == "npu" else "check the driver: nvidia-smi"
            )  # fmt: skip
        else:
            yield Finding(section, name, OK, str(found.get(kind, 0)))


def _torch_npu(found: dict[str, object]) -> Finding:
    section, name = "software", "torch_npu"
    if found.get("torch_npu_error"):
        return Finding(
            section,
            name,
            FAIL,
            f"cannot be imported: {found['torch_npu_error']}",
            "source the toolkit's set_env.sh; its version must be made for this PyTorch",
        )
    version = found.get("torch_npu")
    if version is None:
        return Finding(section, name, OK, "not installed")
    torch_version = str(found.get("torch", ""))
    if str(version).split(".")[:2] != torch_version.split(".")[:2]:
        advice = f"install the torch_npu that was made for PyTorch {torch_version}"
        return Finding(section, name, WARN, f"{version} beside PyTorch {torch_version}", advice)
    return Finding(section, name, OK, str(version))


def _mindspore() -> Finding:
    # Its import takes long and may print; the installed version is what counts.
    try:
        return Finding("software", "MindSpore", OK, metadata.version("mindspore"))
    except metadata.PackageNotFoundError:
        return Finding("software", "MindSpore", OK, "not installed")


def cann(environ: Mapping[str, str], root: Path = Path("/")) -> Finding:
    """The version of the Ascend toolkit, from the files that it is installed with."""
    section, name = "software", "CANN"
    homes = [(variable, environ[variable]) for variable in CANN_HOMES if environ.get(variable)]
    variable, home = homes[0] if homes else ("", str(root / "usr/local/Ascend/ascend-toolkit/latest"))
    folder = Path(home)
    if not folder.is_dir():
        if not homes:
            return Finding(section, name, OK, "not installed")
        advice = "source the set_env.sh of the toolkit that is installed, or unset the variable"
        return Finding(section, name, WARN, f"{variable}={home} is no folder", advice)
    for pattern in CANN_VERSION_FILES:
        for file in sorted(folder.glob(pattern)):
            version = version_in(_read(file))
            if version:
                return _judged_cann(version, folder)
    advice = f"none of {', '.join(CANN_VERSION_FILES)} names one; is {home} the toolkit's folder?"
    return Finding(section, name, WARN, f"version unknown, in {home}", advice)


def _judged_cann(version: str, folder: Path) -> Finding:
    if re.match(r"8\.0\.RC3", version, re.IGNORECASE):
        advice = (
            "its communication is less stable than that of 8.0.RC2 and of the release; verify by going back"
        )
        return Finding("software", "CANN", WARN, f"{version}, in {folder}", advice)
    return Finding("software", "CANN", OK, f"{version}, in {folder}")


def version_in(text: str) -> str:
    """The version that a version file names: `version=8.0.RC2`, or `..._version=[7.3.0:8.0.RC2]`."""
    match = re.search(r"^\s*version\s*=\s*\"?([\w.+-]+)", text, re.IGNORECASE | re.MULTILINE)
    if match is None:
        match = re.search(
            r"^\s*\w*(?:toolkit|runtime|compiler)\w*version\s*=\s*\[(?:[^:\]]*:)?([\w.+-]+)\]", text, re.M
        )
    return match.group(1) if match else ""


def driver(root: Path = Path("/")) -> Finding:
    """The Ascend or NVIDIA driver, by the files it leaves."""
    ascend = version_in(_read(root / "usr/local/Ascend/driver/version.info"))
    if ascend:
        return Finding("software", "driver", OK, f"Ascend {ascend}")
    nvidia = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", _read(root / "proc/driver/nvidia/version"))
    return Finding("software", "driver", OK, f"NVIDIA {nvidia.group(1)}" if nvidia else "none found")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:100_000]
    except OSError:
        return ""
