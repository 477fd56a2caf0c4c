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

from . import perf, sweep, topo

PROGRAM = Path(__file__).parent / "_tune"
COLLECTIVES = (
    "all_reduce all_gather reduce_scatter broadcast reduce gather scatter all_to_all barrier".split()
)
# Between hosts, where --link gives no others: 10 Gbit/s, 20 us, and 5 us of a core for each message.
LINK = {"link_bytes_per_ns": 1.25, "link_latency_ns": 20e3, "link_message_ns": 5e3}
SIZES = [2**power for power in range(6, 28)]  # where crossovers are looked for: 64 B to 128 MiB
# What a table is made from. From 64 MiB on the largest size's choice stands.
TABLE_SIZES = [2**power for power in (6, 8, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24)]
# What HCCL_ALGO and NCCL_ALGO can name.
OF_VARIABLES = ("ring", "tree", "halving_doubling", "nhr", "bruck", "pairwise")
LONGEST_CURVE = 2**30  # bytes times ranks
MANY_RANKS = 64  # from which on every other size is priced
EXAMPLES = """\
examples:
  collective-ops tune                     the machine's numbers: measured once, then kept
  collective-ops tune --again             measures them anew, on a quiet machine
  collective-ops tune explain all_reduce 1MiB --ranks 8
  collective-ops tune explain all_to_all 64K --ranks 4 --private --measure --png candidates.png
  collective-ops tune explain all_reduce 64M --ranks 16 --hosts 2 --link 100Gbit/s,5us
  collective-ops tune table --ranks 2,4,8 --output table.txt     times every algorithm; some minutes
  export COLLECTIVE_OPS_TUNING_TABLE=$PWD/table.txt              takes what it says, on all ranks

The numbers lie in ~/.cache/collective-ops, or below XDG_CACHE_HOME. `explain` prices every algorithm that
could serve the call, and names the one that is taken: by the built-in table or the one given, the same on all
ranks, or by COLLECTIVE_OPS_ALGORITHM. `--measure` runs each of them beside its price.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--again", action="store_true", help="measure, also where numbers are kept")
    parser.add_argument("--json", action="store_true", help="print JSON")
    actions = parser.add_subparsers(dest="action", metavar="explain | table")
    explain = actions.add_parser(
        "explain", help="candidates of a call, their cost, the choice, crossover sizes"
    )
    explain.add_argument(
        "collective", type=parse_collective, metavar="COLLECTIVE", help=", ".join(COLLECTIVES)
    )
    explain.add_argument("size", type=parse_size, help="of the whole vector: 1MiB, 64K, 4096")
    explain.add_argument("--ranks", type=_ranks, required=True, metavar="N")
    explain.add_argument(
        "--type", default="float32", metavar="TYPE", help="of the elements (default float32)"
    )
    explain.add_argument("--private", action="store_true", help="buffers that the ranks do not share")
    explain.add_argument("--measure", action="store_true", help="run each candidate, too")
    explain.add_argument(
        "--hosts", type=_ranks, default=1, metavar="H", help="that the ranks are spread over"
    )
    explain.add_argument(
        "--link",
        type=parse_link,
        default=LINK,
        help="between hosts: 10Gbit/s or 1.2GB/s, and 20us (10Gbit/s,20us)",
    )
    explain.add_argument("--png", type=Path, metavar="FILE", help="draw the candidates' cost over the size")
    explain.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")

    table = actions.add_parser("table", help="time every algorithm, and write down which one to take")
    table.add_argument("--ranks", type=_numbers, default=[2, 4, 8], help="groups to measure (2,4,8)")
    table.add_argument(
        "--collective", type=parse_measured, default="all", help="one of them, or all", metavar="COLLECTIVE"
    )
    table.add_argument("--type", default="float32", metavar="TYPE", help="of the elements (default float32)")
    table.add_argument("--output", type=Path, metavar="FILE", help="default: standard output")


def run(options: argparse.Namespace) -> int:
    if options.action == "table":
        return _run_table(options)
    machine = read_machine(again=options.again)
    if options.action == "explain":
        return _run_explain(options, machine)
    print(json.dumps(machine) if options.json else describe_machine(machine))
    return 0


def parse_collective(text: str) -> str:
    """As `perf` takes them: all_reduce, allreduce, AllReduce, all_reduce_perf."""
    wanted = re.sub("[-_]", "", re.sub("_(test|perf)$", "", text)).lower()
    for name in COLLECTIVES:
        if name.replace("_", "") == wanted:
            return name
    raise argparse.ArgumentTypeError(f"{text}: expected {', '.join(COLLECTIVES[:-1])} or {COLLECTIVES[-1]}")


def parse_measured(text: str) -> str:
    name = text if text == "all" else parse_collective(text)
    if name == "barrier":
        raise argparse.ArgumentTypeError("barrier: there is one way to do it")
    return name


def parse_size(text: str) -> int:
    """1MiB, 64K, 1.5G or 4096: in units of 1024."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmg])(?:i?b)?|b)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: expected a size such as 1MiB, 64K or 4096")
    return int(float(found[1]) * 1024 ** (" kmg".index(found[2].lower()) if found[2] else 0))


def parse_link(text: str) -> dict[str, float]:
    """10Gbit/s, 1.25GB/s; and 20us or 500ns behind a comma."""
    found = re.fullmatch(r"([0-9.]+)\s*(Gbit|GB)/s(?:,\s*([0-9.]+)\s*(us|ns))?", text.strip())
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text}: expected a link such as 10Gbit/s or 100Gbit/s,5us")
    link = LINK | {"link_bytes_per_ns": float(found[1]) / (8 if found[2] == "Gbit" else 1)}
    if found[3]:
        link["link_latency_ns"] = float(found[3]) * (1e3 if found[4] == "us" else 1)
    return link


def _numbers(text: str) -> list[int]:
    return [_ranks(word) for word in text.split(",")]


def _ranks(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1 to 1024")
    return int(text)


# --- The machine's numbers -------------------------------------------------------------------------


def read_machine(again: bool = False) -> dict[str, Any]:
    """Those kept for this hardware, else measured now, which takes under two seconds."""
    host = topo.read_host()
    file = cache_folder() / f"machine-{fingerprint(host)}.json"
    if not again:
        try:
            kept = json.loads(file.read_text())
            if kept["cores"] > 0 and numbers_of(kept):
                return kept
        except (OSError, ValueError, KeyError, TypeError):
            pass  # none, or not to be read: measured anew
    second, last = (
        min((one["bytes"] for one in host["caches"] if one["level"] == level), default=0) for level in (2, 3)
    )
    cpus = [place.cpu for place in topo.places_of_cores(host)]
    measured = _native("probe", second, last, *cpus) | {"processor": host["processor"]}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(measured) + "\n")
        temporary.replace(file)  # readers see the old file or the new one
    except OSError as error:
        print(f"collective-ops tune: the numbers are not kept: {error}", file=sys.stderr)
    return measured


def numbers_of(machine: dict[str, Any]) -> dict[str, float]:
    """By name, as `_tune` takes them. TypeError, KeyError, ValueError: they cannot be."""
    numbers = {one["name"]: float(one["value"]) for one in machine["numbers"]}
    numbers |= {name: float(machine[name]) for name in ("cache_bytes", "shared_cache_bytes")}
    if not all(0 <= value < float("inf") for value in numbers.values()):
        raise ValueError("a number of the machine cannot be")
    return numbers


def cache_folder() -> Path:
    kept = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(kept) if kept else Path.home() / ".cache") / "collective-ops"


def fingerprint(host: dict[str, Any]) -> str:
    """Of the hardware that may be used, and of the numbers' meaning."""
    parts = [
        2,
        host["processor"],
        host["cpus"],
        host["caches"],
        [node["node"] for node in host["numa_nodes"]],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def describe_machine(machine: dict[str, Any]) -> str:
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, measured in {machine['seconds']:.1f} s: fitted to"
        f" {machine['calls']} calls, whose times are met with a median error of"
        f" {machine['median_error']:.0%}, {machine['worst_error']:.0%} at most"
    ]
    for one in machine["numbers"]:
        lines.append(f"  {one['name']:<20} {one['value']:>9.4g} {one['unit']:<5} {one['meaning']}")
    lines.append(f"  {'cache_bytes':<20} {_size(machine['cache_bytes']):>15} second level, of a core")
    return "\n".join(lines)


def _native(*words: object) -> Any:
    if not PROGRAM.exists():
        raise FileNotFoundError(
            f"{PROGRAM} is not there; build it with `make build`, or install the package again"
        )
    try:
        done = subprocess.run(
            [str(PROGRAM), *map(str, words)], capture_output=True, text=True, timeout=600, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"`{words[0]}` took longer than ten minutes; ask for fewer ranks or bytes"
        ) from error
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"{PROGRAM} ended with {done.returncode}")
    return json.loads(done.stdout)


# --- A table of what to take ---


def _run_table(options: argparse.Namespace) -> int:
    chosen = sweep.COLLECTIVES if options.collective == "all" else [options.collective]
    points = []
    for ranks in options.ranks:
        for collective in chosen:
            print(f"collective-ops tune table: {collective}, {ranks} ranks", file=sys.stderr)
            points += sweep_points(collective, ranks, TABLE_SIZES, options.type)
    element = "*" if options.type == "float32" else str(int(re.sub("[^0-9]", "", options.type) or 8) // 8)
    text = sweep.table_text(sweep.rows_of(points), element)
    if options.output is None:
        print(text, end="")
        return 0
    temporary = options.output.with_name(f"{options.output.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(options.output)
    print(
        f"written: {options.output}; export COLLECTIVE_OPS_TUNING_TABLE={options.output.resolve()}",
        file=sys.stderr,
    )
    return 0


def sweep_points(
    collective: str,
    ranks: int,
    sizes: Sequence[int],
    type_name: str = "float32",
    rounds: int = 5,
    batch_ms: float = 2,
) -> list[sweep.Point]:
    """Every algorithm of each size, timed in turn on processes of this host."""
    found = _native("sweep", collective, type_name, ranks, rounds, batch_ms, *sizes)
    return [sweep.Point(collective, ranks, **one) for one in found]


# --- A call's candidates ---------------------------------------------------------------------------


@dataclass
class Explanation:
    collective: str
    type: str
    ranks: int
    shared: bool
    hosts: int
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
    hosts: int = 1,
    link: dict[str, float] = LINK,
) -> Explanation:
    # Large sizes are played chunk by chunk and rank by rank, so of many ranks the curves end earlier.
    step = 2 if ranks > MANY_RANKS else 1
    curve = [one for one in SIZES[::step] if one * ranks * max(1, ranks // 64) <= LONGEST_CURVE]
    sizes = [0] if collective == "barrier" else [size, *curve]
    first, *curves = _priced(machine, collective, type_name, ranks, shared, hosts, link, sizes)
    return Explanation(collective, type_name, ranks, shared, hosts, size, first["candidates"], curves, {})


def _priced(
    machine: dict[str, Any],
    collective: str,
    type_name: str,
    ranks: int,
    shared: bool,
    hosts: int,
    link: dict[str, float],
    sizes: Sequence[int],
) -> list[dict[str, Any]]:
    numbers = [f"{name}={value!r}" for name, value in (numbers_of(machine) | link).items()]
    cores = min(max(ranks // hosts, 1), machine["cores"])
    memory = "shared" if shared else "private"
    words = (collective, type_name, memory, ranks, cores, hosts, *numbers, *sizes)
    return _native("explain", *words)


def prices(
    machine: dict[str, Any], collective: str, sizes: Sequence[int], ranks: int, shared: bool = True
) -> dict[tuple[int, str], float]:
    """Nanoseconds by size and algorithm, on one host, of float32."""
    found = _priced(machine, collective, "float32", ranks, shared, 1, LINK, sizes)
    return {
        (curve["bytes"], one["algorithm"]): one["total_ns"] for curve in found for one in curve["candidates"]
    }


def _run_explain(options: argparse.Namespace, machine: dict[str, Any]) -> int:
    if options.ranks % options.hosts:
        raise ValueError(
            f"--ranks {options.ranks} --hosts {options.hosts}: as many ranks on each host are expected"
        )
    if options.measure and options.hosts > 1:
        raise ValueError("--measure: of one host")
    found = explain(
        machine,
        options.collective,
        options.size,
        options.ranks,
        options.type,
        shared=not options.private,
        hosts=options.hosts,
        link=options.link,
    )
    if options.measure:
        for candidate in found.candidates:
            found.measured_us[candidate["algorithm"]] = measure(found, candidate)
    if options.png is not None:
        draw(options.png, found)
    print(json.dumps(vars(found)) if options.json else describe(found))
    return 0


def measure(found: Explanation, candidate: dict[str, Any]) -> float:
    """Microseconds of a call in place on the slowest rank, with this algorithm; the best of three runs."""
    best = float("inf")
    # Which plan reads private memory is a matter of the path.
    by_path = candidate["path"] == "read" and candidate["algorithm"] != "read"
    forced = {
        "COLLECTIVE_OPS_ALGORITHM": "auto" if by_path else candidate["algorithm"],
        "COLLECTIVE_OPS_PATH": "read" if by_path else "auto",
    }
    for _ in range(3):
        done = subprocess.run(
            [str(perf.PROGRAM), found.collective, "-p", str(found.ranks), "-b", str(found.bytes), "-e"]
            + [str(found.bytes), "-d", found.type, "-z", str(int(found.shared)), "-c", "0", "--json"],
            env=os.environ | forced,
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
    over = f" on {found.hosts} hosts" if found.hosts > 1 else ""
    lines = [
        f"{found.collective} of {_size(found.bytes)} {found.type},"
        f" {found.ranks} ranks{over}, {memory} buffers",
        f"  {'algorithm':<18} {'path':<8} {'priced us':>10} {'waiting':>10} {'cores':>9} {'memory':>9}"
        + (f" {'link':>9}" if found.hosts > 1 else "")
        + f" {'rounds':>7} {'copied':>9} {'reduced':>9}"
        + (f" {'measured':>10}" if found.measured_us else ""),
    ]
    for one in found.candidates:
        mark = ">" if one["chosen"] else " "
        row = f"{mark} {one['algorithm']:<18} {one['path']:<8} {one['total_ns'] / 1e3:>10.2f}"
        row += (
            f" {one['latency_ns'] / 1e3:>10.2f} {one['core_ns'] / 1e3:>9.2f} {one['memory_ns'] / 1e3:>9.2f}"
        )
        row += f" {one['link_ns'] / 1e3:>9.2f}" if found.hosts > 1 else ""
        row += f" {one['rounds']:>7} {_size(one['copied_bytes']):>9} {_size(one['reduced_bytes']):>9}"
        measured = found.measured_us.get(one["algorithm"])
        lines.append(row + ("" if measured is None else f" {measured:>10.2f}"))
    lines += ["", "the price is waiting + cores + memory, of the busiest core; bytes are those of all ranks"]
    if found.hosts > 1:
        lines.append(
            "  link: of the waiting, how long the busiest one carries bytes; parts inside hosts are included"
        )
    chosen = next((one for one in found.candidates if one["chosen"]), None)
    if chosen is not None:
        lines.append(f"> taken: {chosen['algorithm']}, {chosen['path']}, {_reason(found, chosen)}")
    if any(one["path"] == "read" for one in found.candidates):
        lines.append("  read: where the kernel allows it (`collective-ops doctor`)")
    if found.curves:
        lines.append(f"taken by size:    {_ranges(crossovers(found.curves, chosen=True))}")
        lines.append(f"cheapest by size: {_ranges(crossovers(found.curves, chosen=False))}")
    return "\n".join(lines)


def _reason(found: Explanation, chosen: dict[str, Any]) -> str:
    forced = os.environ.get("COLLECTIVE_OPS_ALGORITHM", "auto")
    if forced == chosen["algorithm"]:
        return f"since COLLECTIVE_OPS_ALGORITHM={forced}"
    for name in ("HCCL_ALGO", "NCCL_ALGO"):
        # Between hosts plans of messages are taken anyway.
        if os.environ.get(name) and found.hosts == 1 and chosen["algorithm"] in OF_VARIABLES:
            return f"since {name}={os.environ[name]}"
    if found.hosts > 1:
        return "by the number of hosts and the size"
    for name in ("COLLECTIVE_OPS_TUNER_PLUGIN", "COLLECTIVE_OPS_TUNING_TABLE"):
        if os.environ.get(name):
            return f"by {name}={os.environ[name]}"
    return "by the built-in table of collective, size, ranks and memory"


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
