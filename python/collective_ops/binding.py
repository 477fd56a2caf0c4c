"""Which cores each rank of a host runs on: `collective-ops run --bind_core`.

A rank that stays on its cores finds its caches warm, and what it writes first lies in its own NUMA node's
memory: Linux places a page where it is first touched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def cores_of_ranks(ranks: int, cores: Sequence[Sequence[int]]) -> list[list[int]]:
    """The cpus of each rank: neighbours for neighbours, equal shares. Where there are more ranks than cores,
    several have the same one. `cores`: the cpus of each core, near ones beside each other."""
    count = len(cores)
    result = []
    for rank in range(ranks):
        first = rank * count // ranks
        last = max(first + 1, (rank + 1) * count // ranks)
        result.append(sorted(cpu for core in cores[first:last] for cpu in core))
    return result


def usable_cores(allowed: Iterable[int] | None = None, system: Path = Path("/sys")) -> list[list[int]]:
    """The cpus of each core that this process may use, by socket and core."""
    cores: dict[tuple[int, int, int], list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0) if allowed is None else allowed):
        folder = system / f"devices/system/cpu/cpu{cpu}"
        node = next((int(path.name[4:]) for path in folder.glob("node[0-9]*")), 0)
        socket = _number(folder / "topology/physical_package_id", 0)
        cores.setdefault((socket, node, _number(folder / "topology/core_id", cpu)), []).append(cpu)
    return [cores[key] for key in sorted(cores)]


def _number(file: Path, default: int) -> int:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return default


def parse_cpus(text: str) -> list[int]:
    """ "0-2,7" is [0, 1, 2, 7]."""
    cpus = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def parse_bind_core(text: str) -> bool | dict[int, list[int]]:
    """The value of --bind_core: True, False, or msrun's JSON, cpus by device: {"device0": ["0-3"], ...}."""
    if text.lower() in ("true", "1"):
        return True
    if text.lower() in ("false", "0"):
        return False
    expected = 'expected True, False, or cpus by device: {"device0": ["0-3"], "device1": ["4-7"]}'
    try:
        given = json.loads(text)
        cpus = {
            int(name.removeprefix("device")): [cpu for part in parts for cpu in parse_cpus(part)]
            for name, parts in given.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{text}: {expected}") from error
    if not cpus or not all(cpus.values()):
        raise ValueError(f"{text}: {expected}")
    return cpus


def plan_binding(
    wanted: bool | Mapping[int, Sequence[int]], device_ids: Sequence[int], cores: Sequence[Sequence[int]]
) -> tuple[list[list[int]], str]:
    """The cpus of each rank, [] for any, and a warning or ""."""
    if wanted is False:
        return [[] for _ in device_ids], ""
    if wanted is True:
        bound = cores_of_ranks(len(device_ids), cores)
        if len(cores) < len(device_ids):
            return (
                bound,
                f"--bind_core: {len(device_ids)} ranks share the {len(cores)} cores that may be used",
            )
        return bound, ""
    allowed = {cpu for core in cores for cpu in core}
    given = [list(wanted.get(device, ())) for device in device_ids]
    bound = [[cpu for cpu in cpus if cpu in allowed] for cpus in given]
    missing = sorted({cpu for cpus in given for cpu in cpus} - allowed)
    unbound = [rank for rank, cpus in enumerate(bound) if not cpus]
    warning = f"cpu {', '.join(map(str, missing))} may not be used here" if missing else ""
    if unbound:
        warning += f"{'; ' if warning else ''}rank {', '.join(map(str, unbound))} is not bound"
    return bound, f"--bind_core: {warning}" if warning else ""
