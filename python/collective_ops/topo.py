"""`collective-ops topo`: what this host is made of, where the ranks of a job are, and how fast the links are.

The native program `_topo` beside this file reads and measures; here it is judged and shown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .binding import parse_cpus

PROGRAM = Path(__file__).parent / "_topo"
SLOW = 1.5  # times the median of links of the same kind, in latency or in time per byte
ENOUGH = 3  # links of a kind, so that a median says anything
NEAREST = ("same cpu", "same core", "same NUMA node", "same socket", "other socket")
EXAMPLES = """\
examples:
  collective-ops topo                   sockets, NUMA nodes, caches, interfaces; links between all cores
  collective-ops topo my-job            the ranks of a running job (or of a process), and their links
  collective-ops topo my-job -i 3       the links of rank 3
  collective-ops topo --json
  collective-ops topo --png links.png   needs matplotlib

A link that is 1.5 times slower than the median of its kind (same socket, say) is marked `!`, one that could
not be measured within 3 s `x`. Where the job runs meanwhile, its own work slows the links down.
exit code: 0; 1 where the host or the job cannot be read; 3 where a link is marked.
"""


@dataclass(frozen=True)
class Place:
    """An end of links: a rank, or a core where no job is given."""

    number: int  # of the rank, or of the core
    cpu: int
    bound: bool = True  # to that cpu alone; else it was seen there last, or is measured there


@dataclass(frozen=True)
class Link:
    sender: int
    receiver: int
    kind: str  # of NEAREST
    latency_ns: float | None
    bandwidth_gbs: float | None
    state: str  # ok, slow, or down: could not be measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("job", nargs="?", metavar="PID|JOB", help="whose ranks to place (default: cores)")
    parser.add_argument(
        "-i", dest="number", type=int, metavar="RANK", help="links of this rank, or core, alone"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the two matrices")
    parser.add_argument("--no-links", action="store_true", help="measure nothing")


def run(options: argparse.Namespace) -> int:
    host = read_host()
    unit, places = (
        ("core", places_of_cores(host)) if options.job is None else ("rank", places_of_job(options.job))
    )
    if options.number is not None and options.number not in [place.number for place in places]:
        known = ", ".join(str(place.number) for place in places)
        raise ValueError(f"-i {options.number}: there is no such {unit}; there are {known}")
    links: list[Link] = []
    if not options.no_links and len(places) > 1:
        measured = read_host([place.cpu for place in places])
        links = judge(host, places, measured["latency_ns"], measured["bandwidth_gbs"])
    if options.number is not None:
        links = [link for link in links if link.sender == options.number or link.receiver == options.number]
    if options.png is not None:
        draw(options.png, unit, places, links)
    if options.json:
        print(
            json.dumps(
                host | {"unit": unit, "places": list(map(asdict, places)), "links": list(map(asdict, links))}
            )
        )
    else:
        print(describe(host, unit, places, links, options.number))
    return 3 if any(link.state != "ok" for link in links) else 0


def read_host(cpus: Sequence[int] = ()) -> dict[str, Any]:
    """What `_topo` says, with the links between `cpus`."""
    if not PROGRAM.exists():
        raise FileNotFoundError(
            f"{PROGRAM} is not there; build it with `make build`, or install the package again"
        )
    # 3 s for each pair are the program's own bound.
    pairs = len(cpus) * (len(cpus) - 1) // 2
    done = subprocess.run(
        [str(PROGRAM), *map(str, cpus)], capture_output=True, text=True, timeout=30 + 4 * pairs, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"{PROGRAM} ended with {done.returncode}")
    return json.loads(done.stdout)


def places_of_cores(host: dict[str, Any]) -> list[Place]:
    """Of each core the first cpu that may be used."""
    first: dict[int, int] = {}
    for cpu in host["cpus"]:
        if cpu["allowed"]:
            first.setdefault(cpu["core"], cpu["cpu"])
    return [Place(core, cpu) for core, cpu in sorted(first.items())]


def places_of_job(job: str, proc: Path = Path("/proc")) -> list[Place]:
    from . import jobs, status

    groups = [group for group in status.select(jobs.find_groups(), job) if group.is_world]
    if len(groups) != 1:
        raise ValueError(f"{len(groups)} jobs are known as {job!r}; `collective-ops status` lists them")
    living = [rank for rank in groups[0].ranks if rank.process_state]
    if not living:
        raise ValueError(f"no rank of job {job!r} lives")
    return spread([place_of_process(rank.number, rank.pid, proc) for rank in living])


def spread(found: Sequence[tuple[Place, Sequence[int]]]) -> list[Place]:
    """Of ranks and the cpus that each may use. Those that are not bound and were seen on one cpu are given
    others, as far as there are: a link between two ranks on one cpu says how the scheduler takes turns.
    """
    taken = Counter(place.cpu for place, _ in found if place.bound)
    places = []
    for place, cpus in found:
        cpu = place.cpu
        if not place.bound:
            cpu = min(cpus, key=lambda one: (taken[one], one != place.cpu))
            taken[cpu] += 1
        places.append(replace(place, cpu=cpu))
    return places


def place_of_process(number: int, pid: int, proc: Path = Path("/proc")) -> tuple[Place, list[int]]:
    """Where it is, and the cpus that it may use."""
    status = (proc / str(pid) / "status").read_text()
    cpus = parse_cpus(
        next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))
    )
    # After the command's name, which may hold anything, the 37th is the processor it ran on last.
    last = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[36])
    place = Place(number, cpus[0], True) if len(cpus) == 1 else Place(number, last, False)
    return place, cpus


# --- Links -----------------------------------------------------------------------------------------


def kind_of(host: dict[str, Any], one: int, other: int) -> str:
    cpus = {cpu["cpu"]: cpu for cpu in host["cpus"]}
    a, b = cpus[one], cpus[other]
    for kind, field in zip(NEAREST, ("cpu", "core", "numa_node", "socket"), strict=False):
        if a[field] == b[field]:
            return kind
    return NEAREST[-1]


def judge(
    host: dict[str, Any],
    places: Sequence[Place],
    latency: Sequence[Sequence[float | None]],
    bandwidth: Sequence[Sequence[float | None]],
) -> list[Link]:
    """Each link in each direction, with its state."""
    found = []
    for i, sender in enumerate(places):
        for j, receiver in enumerate(places):
            if i != j:
                kind = kind_of(host, sender.cpu, receiver.cpu)
                found.append((sender.number, receiver.number, kind, latency[i][j], bandwidth[i][j]))
    of_kind = defaultdict(list)
    for _, _, kind, nanoseconds, speed in found:
        if nanoseconds is not None and speed is not None:
            of_kind[kind].append((nanoseconds, speed))
    usual = {
        kind: (statistics.median(one for one, _ in both), statistics.median(one for _, one in both))
        for kind, both in of_kind.items()
        if len(both) >= 2 * ENOUGH  # both directions
    }
    return [Link(*link, _state(link[3], link[4], usual.get(link[2]))) for link in found]


def _state(latency: float | None, bandwidth: float | None, usual: tuple[float, float] | None) -> str:
    if latency is None or bandwidth is None:
        return "down"
    if usual is None:
        return "ok"
    return "slow" if latency > SLOW * usual[0] or bandwidth * SLOW < usual[1] else "ok"


# --- Text and picture ------------------------------------------------------------------------------


def describe(
    host: dict[str, Any], unit: str, places: Sequence[Place], links: Sequence[Link], number: int | None
) -> str:
    parts = [_host_text(host, unit, places), _interface_text(host["interfaces"])]
    if links:
        shown = [place.number for place in places]
        rows = [number] if number is not None else shown
        title = f"between {unit}s; row: {unit} that writes, column: {unit} that reads"
        parts.append(_matrix(f"latency, one way, ns, {title}", rows, shown, links, "latency_ns", "{:.0f}"))
        parts.append(_matrix(f"bandwidth, GB/s, {title}", rows, shown, links, "bandwidth_gbs", "{:.1f}"))
        parts += _marks(unit, links)
    return "\n\n".join(parts)


def _host_text(host: dict[str, Any], unit: str, places: Sequence[Place]) -> str:
    cpus = host["cpus"]
    allowed = [cpu for cpu in cpus if cpu["allowed"]]
    count = {name: len({cpu[name] for cpu in cpus}) for name in ("socket", "core", "numa_node")}
    used = "" if len(allowed) == len(cpus) else f", of which {len(allowed)} may be used"
    lines = [
        f"{host['host']}: {host['processor'] or 'processor'}",
        f"{_count(count['socket'], 'socket')}, {_count(count['numa_node'], 'NUMA node')}, "
        f"{_count(count['core'], 'core')}, {_count(len(cpus), 'cpu')}{used}",
    ]
    memory = {node["node"]: node["bytes"] for node in host["numa_nodes"]}
    above: tuple[int, int] | None = None
    for cpu in sorted(cpus, key=lambda cpu: (cpu["socket"], cpu["numa_node"], cpu["core"], cpu["cpu"])):
        if above != (cpu["socket"], cpu["numa_node"]):
            above = cpu["socket"], cpu["numa_node"]
            lines.append(
                f"  socket {above[0]}, NUMA node {above[1]}, {_size(memory.get(above[1], 0))} of memory"
            )
        caches = [cache for cache in host["caches"] if cpu["cpu"] in cache["cpus"]]
        texts = [f"L{cache['level']} {_size(cache['bytes'])}{_shared(cache['cpus'])}" for cache in caches]
        ranks = [place for place in places if unit == "rank" and place.cpu == cpu["cpu"]]
        if ranks:
            texts.append(
                "rank " + ", ".join(f"{place.number}{'' if place.bound else '?'}" for place in ranks)
            )
        texts += [] if cpu["allowed"] else ["not to be used"]
        lines.append("    " + "  ".join([f"core {cpu['core']}  cpu {cpu['cpu']}", *texts]))
    if any(not place.bound for place in places):
        lines.append(
            "  ?: not bound; seen there last, or measured there where another rank was seen on the same cpu;"
            " `collective-ops run --bind_core True` binds ranks"
        )
    return "\n".join(lines)


def _interface_text(interfaces: Sequence[dict[str, Any]]) -> str:
    lines = ["interfaces"]
    for one in interfaces:
        speed = f"  {one['megabits']} Mbit/s" if one["megabits"] else ""
        lines.append(
            f"  {one['name']}  {'up' if one['up'] else 'down'}{speed}  {' '.join(one['addresses'])}".rstrip()
        )
    return "\n".join(lines)


def _matrix(
    title: str, rows: Sequence[int], columns: Sequence[int], links: Sequence[Link], field: str, form: str
) -> str:
    by_ends = {(link.sender, link.receiver): link for link in links}
    lines = [title, " " * 6 + "".join(f"{column:>8}" for column in columns)]
    for row in rows:
        cells = []
        for column in columns:
            link = by_ends.get((row, column))
            if link is None:
                cells.append("- ")
            elif link.state == "down":
                cells.append("x ")
            else:
                cells.append(form.format(getattr(link, field)) + ("!" if link.state == "slow" else " "))
        lines.append(f"{row:>6}" + "".join(f"{cell:>8}" for cell in cells).rstrip())
    return "\n".join(lines)


def _marks(unit: str, links: Sequence[Link]) -> list[str]:
    lines = []
    for state, text in (("slow", "slower than others of its kind"), ("down", "could not be measured")):
        lines += [
            f"{unit} {link.sender} to {link.receiver} ({link.kind}): {text}"
            for link in links
            if link.state == state
        ]
    return ["\n".join(lines)] if lines else []


def draw(file: Path, unit: str, places: Sequence[Place], links: Sequence[Link]) -> None:
    if not links:
        raise ValueError("--png: there are no links to draw")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"--png needs matplotlib ({error}): pip install matplotlib") from error
    numbers = [place.number for place in places]
    by_ends = {(link.sender, link.receiver): link for link in links}
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, field, title in zip(
        figure.subplots(1, 2),
        ("latency_ns", "bandwidth_gbs"),
        ("latency, one way (ns)", "bandwidth (GB/s)"),
        strict=True,
    ):
        values = [[getattr(by_ends.get((row, column)), field, None) for column in numbers] for row in numbers]
        image = axes.imshow(
            [[float("nan") if one is None else one for one in row] for row in values], cmap="viridis"
        )
        axes.set(title=title, xlabel=f"{unit} that reads", ylabel=f"{unit} that writes")
        axes.set_xticks(range(len(numbers)), numbers)
        axes.set_yticks(range(len(numbers)), numbers)
        figure.colorbar(image, ax=axes)
        for (row, column), link in by_ends.items():
            if link.state != "ok":
                mark = "!" if link.state == "slow" else "x"
                axes.text(
                    numbers.index(column), numbers.index(row), mark, ha="center", va="center", color="red"
                )
    figure.savefig(file, dpi=120)
    print(f"drawn: {os.fspath(file)}", file=sys.stderr)


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _shared(cpus: Sequence[int]) -> str:
    return "" if len(cpus) == 1 else f" (of {len(cpus)} cpus)"


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
