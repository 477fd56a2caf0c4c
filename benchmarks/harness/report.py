"""Tables, CSV and JSON of what was measured."""

from __future__ import annotations

import csv
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .cases import show_size
from .figures import DIRECT, DIRECT_AGAIN, GLOO, PRIVATE, PYTHON, Row
from .gradients import LABELS

LEGEND = """\
direct, private: our C++ core on memory that the ranks share, on ordinary memory; Python: direct, from Python
algbw, busbw: GB/s of direct, bytes per second of a call and of the bus, as nccl-tests define them
peer: the fastest MPI at its fastest setting; d/peer, p/peer: time of direct and of private over its time, the
  median over rounds (below 1: ours is faster; `!`: slower by more than 5 % and by more than the spread)
spread: of direct against itself; limit: share of what the machine can do (docs/benchmarks.md)"""

HEADER = (
    f"{'size':>9} {'direct':>10} {'private':>10} {'Python':>10} {'algbw':>8} {'busbw':>8} "
    f"{'gloo':>10} {'x gloo':>7} {'peer':>10} {'d/peer':>7} {'p/peer':>7} {'spread':>7} {'limit':>6}"
    "  best peer"
)


def title(row: Row, cores: int) -> str:
    case = row.case
    more = f", oversubscribed on {cores} cores" if case.ranks > cores else f" on {cores} cores"
    return f"\n{case.collective}, {case.dtype}, {case.ranks} ranks{more}; microseconds per call, median"


def _number(value: float | None, width: int, digits: int, mark: str = "") -> str:
    if value is None:
        return f"{'-':>{width}}"
    # A figure that does not fit loses digits, not its column.
    text = f"{value:.{digits}f}"
    return f"{text if len(text) + len(mark) <= width else f'{value:.0f}'}{mark}".rjust(width)


def bandwidths(row: Row, name: str) -> tuple[float | None, float | None]:
    """algbw and busbw in GB/s; none of a barrier."""
    seconds = row.median(name)
    if not seconds or not row.case.bytes:
        return None, None
    algbw = row.case.bytes / seconds / 1e9
    return algbw, algbw * row.case.busbw_factor()


def line(row: Row) -> str:
    micro = {name: None if (s := row.median(name)) is None else s * 1e6 for name in row.seconds}
    algbw, busbw = bandwidths(row, DIRECT)
    to_gloo, peer, limit = row.ratio(DIRECT, GLOO), row.best_peer(), row.share_of_limit(DIRECT)
    size = show_size(row.case.bytes) if row.case.bytes else "-"
    cells = [f"{size:>9}"]
    cells += [_number(micro.get(name), 10, 2) for name in (DIRECT, PRIVATE, PYTHON)]
    cells += [_number(algbw, 8, 3), _number(busbw, 8, 3), _number(micro.get(GLOO), 10, 2)]
    cells += [_number(1 / to_gloo if to_gloo else None, 7, 1)]
    cells += [_number(micro.get(peer or ""), 10, 2)]
    for name in (DIRECT, PRIVATE):
        cells.append(_number(row.ratio(name, peer), 7, 2, "!" if row.lost(name) else " "))
    cells += [_number(row.spread(), 7, 2), f"{limit:>6.0%}" if limit else f"{'-':>6}"]
    return " ".join(cells) + f"  {peer or 'none'}"


def gradient_table(row: Row) -> str:
    """ResNet-50's gradients: what a user of the Python package gets."""
    size = row.case.bytes
    lines = [
        f"\nResNet-50, 161 gradients, {size / 1e6:.1f} MB, {row.case.ranks} ranks",
        f"  {'library':<38}{'latency ms':>12}{'throughput GB/s':>17}{'x gloo':>9}",
    ]
    for name, values in row.seconds.items():
        seconds = statistics.median(values)
        faster = _number(row.ratio(GLOO, name), 9, 1)
        lines.append(f"  {LABELS[name]:<38}{seconds * 1e3:>12.2f}{size / seconds / 1e9:>17.2f}{faster}")
    return "\n".join(lines)


COLUMNS = (
    "collective dtype ranks bytes contender product median_us algbw_gbs busbw_gbs "
    "ratio_to_gloo ratio_to_best_peer best_peer spread share_of_limit rounds"
).split()


def csv_lines(row: Row) -> list[dict[str, Any]]:
    """A dictionary by COLUMNS for each contender; an empty cell is not known."""
    best, spread = row.best_peer(), row.spread()
    lines = []
    for name, values in row.seconds.items():
        algbw, busbw = bandwidths(row, name)
        cells = {
            "collective": row.case.collective,
            "dtype": row.case.dtype,
            "ranks": row.case.ranks,
            "bytes": row.case.bytes,
            "contender": name,
            "product": row.products.get(name, "gloo" if name == GLOO else "collective_ops"),
            "median_us": statistics.median(values) * 1e6,
            "algbw_gbs": algbw,
            "busbw_gbs": busbw,
            "ratio_to_gloo": row.ratio(name, GLOO),
            "ratio_to_best_peer": row.ratio(name, best),
            "best_peer": best,
            "spread": spread,
            "share_of_limit": row.share_of_limit(name),
            "rounds": len(values),
        }
        lines.append({key: "" if value is None else value for key, value in cells.items()})
    return lines


def write_csv(path: str, rows: Sequence[Row]) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in rows:
            writer.writerows(csv_lines(row))
    os.replace(temporary, path)


def write_json(path: str, about: dict[str, Any]) -> None:
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(about, indent=1))
    temporary.replace(path)


def draw(path: str, rows: Sequence[Row]) -> None:
    """A picture for each collective and number of ranks: time of a call by size. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    collectives = list(dict.fromkeys(row.case.collective for row in rows))
    ranks = sorted({row.case.ranks for row in rows})
    figure, axes = pyplot.subplots(
        len(collectives), len(ranks), figsize=(5.5 * len(ranks), 4 * len(collectives)), squeeze=False
    )
    for across, collective in enumerate(collectives):
        for along, count in enumerate(ranks):
            chosen = [row for row in rows if (row.case.collective, row.case.ranks) == (collective, count)]
            _panel(axes[across][along], f"{collective}, {count} ranks", chosen)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panel(axis: Any, name: str, rows: Sequence[Row]) -> None:
    products = list(dict.fromkeys(product for row in rows for product in row.products.values()))
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        shown = {contender: contender for contender in (DIRECT, PRIVATE, GLOO)}
        shown |= {product: row.best_peer(product) or "" for product in products}
        for label, contender in shown.items():
            seconds = row.median(contender)
            if seconds is not None and contender != DIRECT_AGAIN:
                lines.setdefault(label, []).append((max(row.case.bytes, 1), seconds * 1e6))
        if row.limit_seconds:
            lines.setdefault("limit", []).append((row.case.bytes, row.limit_seconds * 1e6))
    for label, points in lines.items():
        style = "k:" if label == "limit" else "o-" if label in (DIRECT, PRIVATE) else "x--"
        axis.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    axis.set(xscale="log", yscale="log", title=name, xlabel="bytes", ylabel="microseconds per call")
    axis.grid(True, alpha=0.3)
    axis.legend(fontsize=8)
