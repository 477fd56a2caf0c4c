"""`collective-ops tune`: what this machine costs, and what that says about the algorithms of a call.

The native program `_tune` beside this file measures and prices; here its numbers are kept and shown.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import perf, topo

PROGRAM = Path(__file__).parent / "_tune"
COLLECTIVES = (
    "all_reduce all_gather reduce_scatter broadcast reduce gather scatter all_to_all barrier".split()
)
NUMBERS = "copy_bytes_per_ns reduce_bytes_per_ns memory_bytes_per_ns cache_bytes signal_ns yield_ns".split()
SIZES = [2**power for power in range(6, 28)]  # where crossovers are looked for: 64 B to 128 MiB
EXAMPLES = """\
examples:
  collective-ops tune                     the machine's numbers: measured once, then kept
  collective-ops tune --again             measures them anew, on a quiet machine
  collective-ops tune explain all_reduce 1MiB --ranks 8
  collective-ops tune explain all_to_all 64K --ranks 4 --private --measure --png candidates.png

The numbers lie in ~/.cache/collective-ops, or below XDG_CACHE_HOME. `explain` prices every algorithm that
could serve the call, and names the one that is taken: by thresholds that were measured, the same on all
ranks, or by COLLECTIVE_OPS_ALGORITHM. `--measure` runs each of them beside its price.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--again", action="store_true", help="measure, also where numbers are kept")
    parser.add_argument("--json", action="store_true", help="print JSON")
    actions = parser.add_subparsers(dest="action", metavar="explain")
    explain = actions.add_parser(
        "explain", help="candidates of a call, their cost, the choice, crossover sizes"
    )
    explain.add_argument("collective", choices=COLLECTIVES, metavar="COLLECTIVE", help=", ".join(COLLECTIVES))
    explain.add_argument("size", type=parse_size, help="of the whole vector: 1MiB, 64K, 4096")
    explain.add_argument("--ranks", type=_ranks, required=True, metavar="N")
    explain.add_argument(
        "--type", default="float32", metavar="TYPE", help="of the elements (default float32)"
    )
    explain.add_argument("--private", action="store_true", help="buffers that the ranks do not share")
    explain.add_argument("--measure", action="store_true", help="run each candidate, too")
    explain.add_argument("--png", type=Path, metavar="FILE", help="draw the candidates' cost over the size")
    explain.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def run(options: argparse.Namespace) -> int:
    machine = read_machine(again=options.again)
    if options.action == "explain":
        return _run_explain(options, machine)
    print(json.dumps(machine) if options.json else describe_machine(machine))
    return 0


def parse_size(text: str) -> int:
    """1MiB, 64K, 1.5G or 4096: in units of 1024."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmg])(?:i?b)?|b)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: expected a size such as 1MiB, 64K or 4096")
    return int(float(found[1]) * 1024 ** (" kmg".index(found[2].lower()) if found[2] else 0))


def _ranks(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1 to 1024")
    return int(text)


# --- The machine's numbers -------------------------------------------------------------------------


def read_machine(again: bool = False) -> dict[str, Any]:
    """Those kept for this hardware, else measured now, which takes about a second."""
    host = topo.read_host()
    file = cache_folder() / f"machine-{fingerprint(host)}.json"
    if not again:
        try:
            kept = json.loads(file.read_text())
            if all(kept[name] > 0 for name in (*NUMBERS, "cores")):
                return kept
        except (OSError, ValueError, KeyError, TypeError):
            pass  # none, or not to be read: measured anew
    level_two = [cache["bytes"] for cache in host["caches"] if cache["level"] == 2]
    cpus = [place.cpu for place in topo.places_of_cores(host)]
    measured = _native("probe", min(level_two, default=0), *cpus) | {"processor": host["processor"]}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(measured) + "\n")
        temporary.replace(file)  # readers see the old file or the new one
    except OSError as error:
        print(f"collective-ops tune: the numbers are not kept: {error}", file=sys.stderr)
    return measured


def cache_folder() -> Path:
    kept = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(kept) if kept else Path.home() / ".cache") / "collective-ops"


def fingerprint(host: dict[str, Any]) -> str:
    """Of the hardware that may be used, and of the numbers' meaning."""
    parts = [
        1,
        host["processor"],
        host["cpus"],
        host["caches"],
        [node["node"] for node in host["numa_nodes"]],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def describe_machine(machine: dict[str, Any]) -> str:
    copy, reduce = machine["copy_fit"], machine["reduce_fit"]
    rows = [
        ("cores", f"{machine['cores']}", ""),
        ("copy", f"{machine['copy_bytes_per_ns']:.1f} GB/s", _fit_text(copy)),
        ("reduction", f"{machine['reduce_bytes_per_ns']:.1f} GB/s", _fit_text(reduce)),
        ("memory", f"{machine['memory_bytes_per_ns']:.1f} GB/s", "all cores together"),
        ("second-level cache", f"{machine['cache_bytes'] / 2**20:.3g} MiB", "of a core"),
        ("hand-over between cores", f"{machine['signal_ns']:.0f} ns", "one way, spinning"),
        ("hand-over on one core", f"{machine['yield_ns']:.0f} ns", "one way, by sched_yield"),
    ]
    lines = [
        f"{machine['processor']}, measured in {machine['seconds']:.1f} s; bytes count as loaded plus stored"
    ]
    return "\n".join(lines + [f"  {name:<24} {value:>12}  {note}".rstrip() for name, value, note in rows])


def _fit_text(fit: dict[str, float]) -> str:
    off = f"the fit is {fit['residual']:.0%} off at most"
    return f"of what another core wrote; and {fit['start_ns']:.0f} ns a call; {off}"


def _native(*words: object) -> Any:
    if not PROGRAM.exists():
        raise FileNotFoundError(
            f"{PROGRAM} is not there; build it with `make build`, or install the package again"
        )
    done = subprocess.run(
        [str(PROGRAM), *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"{PROGRAM} ended with {done.returncode}")
    return json.loads(done.stdout)


# --- A call's candidates ---------------------------------------------------------------------------


@dataclass
class Explanation:
    collective: str
    type: str
    ranks: int
    shared: bool
    bytes: int
    candidates: list[dict[str, Any]]  # as _tune gives them, cheapest first
    curves: list[dict[str, Any]]  # the same for each of SIZES
    measured_us: dict[str, float]  # by algorithm; empty where nothing was measured


def explain(
    machine: dict[str, Any],
    collective: str,
    size: int,
    ranks: int,
    type_name: str = "float32",
    shared: bool = True,
) -> Explanation:
    numbers = [min(ranks, machine["cores"]), *(machine[name] for name in NUMBERS)]
    memory = "shared" if shared else "private"
    sizes = [0] if collective == "barrier" else [size, *SIZES]
    first, *curves = _native("explain", collective, type_name, memory, ranks, *numbers, *sizes)
    return Explanation(collective, type_name, ranks, shared, size, first["candidates"], curves, {})


def _run_explain(options: argparse.Namespace, machine: dict[str, Any]) -> int:
    found = explain(
        machine, options.collective, options.size, options.ranks, options.type, shared=not options.private
    )
    if options.measure:
        for candidate in found.candidates:
            found.measured_us[candidate["algorithm"]] = measure(found, candidate["algorithm"])
    if options.png is not None:
        draw(options.png, found)
    print(json.dumps(vars(found)) if options.json else describe(found))
    return 0


def measure(found: Explanation, algorithm: str) -> float:
    """Microseconds of a call in place on the slowest rank, with this algorithm; the best of three runs."""
    best = float("inf")
    for _ in range(3):
        done = subprocess.run(
            [str(perf.PROGRAM), found.collective, "-p", str(found.ranks), "-b", str(found.bytes), "-e"]
            + [str(found.bytes), "-d", found.type, "-z", str(int(found.shared)), "-c", "0", "--json"],
            env=os.environ | {"COLLECTIVE_OPS_ALGORITHM": algorithm},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        best = min(best, json.loads(done.stdout)["rows"][-1]["time_us"])
    return best


def crossovers(curves: Sequence[dict[str, Any]], chosen: bool) -> list[tuple[int, str]]:
    """(size, algorithm): from that size on this one is the cheapest, or the one taken."""
    result: list[tuple[int, str]] = []
    for curve in curves:
        candidates = curve["candidates"]
        name = next((one["algorithm"] for one in candidates if one["chosen"] or not chosen), "none")
        if not result or result[-1][1] != name:
            result.append((curve["bytes"], name))
    return result


def describe(found: Explanation) -> str:
    memory = "shared" if found.shared else "private"
    lines = [
        f"{found.collective} of {_size(found.bytes)} {found.type}, {found.ranks} ranks, {memory} buffers",
        f"  {'algorithm':<10} {'path':<7} {'priced us':>10} {'latency':>9} {'cores':>9} {'memory':>9}"
        f" {'rounds':>7} {'copied':>9} {'reduced':>9}" + (f" {'measured':>10}" if found.measured_us else ""),
    ]
    for one in found.candidates:
        mark = ">" if one["chosen"] else " "
        row = f"{mark} {one['algorithm']:<10} {one['path']:<7} {one['total_ns'] / 1e3:>10.2f}"
        row += "".join(f" {one[name] / 1e3:>9.2f}" for name in ("latency_ns", "core_ns", "memory_ns"))
        row += f" {one['rounds']:>7} {_size(one['copied_bytes']):>9} {_size(one['reduced_bytes']):>9}"
        measured = found.measured_us.get(one["algorithm"])
        lines.append(row + ("" if measured is None else f" {measured:>10.2f}"))
    lines += ["", "the price is latency + the larger of cores and memory; bytes are those of all ranks"]
    chosen = next(one for one in found.candidates if one["chosen"])
    lines.append(f"> taken: {chosen['algorithm']}, {chosen['path']}, {_reason(chosen)}")
    if any(one["path"] == "read" for one in found.candidates):
        lines.append(
            "  read: where the kernel allows it (`collective-ops doctor`); its system calls are not priced"
        )
    if found.curves:
        lines.append(f"taken by size:    {_ranges(crossovers(found.curves, chosen=True))}")
        lines.append(f"cheapest by size: {_ranges(crossovers(found.curves, chosen=False))}")
    return "\n".join(lines)


def _reason(chosen: dict[str, Any]) -> str:
    forced = os.environ.get("COLLECTIVE_OPS_ALGORITHM", "auto")
    if forced == chosen["algorithm"]:
        return f"since COLLECTIVE_OPS_ALGORITHM={forced}"
    if chosen["algorithm"] in ("ring", "tree"):  # thresholds name neither
        hccl, nccl = os.environ.get("HCCL_ALGO", ""), os.environ.get("NCCL_ALGO", "")
        return f"since HCCL_ALGO={hccl}" if hccl else f"since NCCL_ALGO={nccl}"
    return "by the measured thresholds for collective, size, ranks and memory"


def _ranges(points: Sequence[tuple[int, str]]) -> str:
    first, *others = points
    return first[1] + "".join(f", from {_size(size)} {name}" for size, name in others)


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def draw(file: Path, found: Explanation) -> None:
    if not found.curves:
        raise ValueError("--png: a barrier has one size")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"--png needs matplotlib ({error}): pip install matplotlib") from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = sorted({one["algorithm"] for curve in found.curves for one in curve["candidates"]})
    for name in names:
        points = [
            (curve["bytes"], one["total_ns"] / 1e3, one["chosen"])
            for curve in found.curves
            for one in curve["candidates"]
            if one["algorithm"] == name
        ]
        (line,) = axes.plot([x for x, _, _ in points], [y for _, y, _ in points], label=name)
        taken = [(x, y) for x, y, chosen in points if chosen]
        axes.plot([x for x, _ in taken], [y for _, y in taken], "o", color=line.get_color())
    for name, microseconds in found.measured_us.items():
        axes.plot([found.bytes], [microseconds], "x", color=axes.lines[2 * names.index(name)].get_color())
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="microseconds, by the model")
    axes.set_title(
        f"{found.collective}, {found.ranks} ranks; dots: taken"
        + ("; x: measured" if found.measured_us else "")
    )
    axes.legend()
    figure.savefig(file, dpi=120)
    print(f"drawn: {os.fspath(file)}", file=sys.stderr)
