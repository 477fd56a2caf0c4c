"""`collective-ops heatmap`: draws who sent how much to whom, and who waited for whom, from a comm_trace.json.

Imports nothing else of the package than the picture, so that it runs without the native part
(tools/comm_heatmap.py).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HELP = """\
Draws the communication of a job as a heat map, and says in plain sentences:
  - is the load of the ranks balanced?   (time outside of calls, per rank)
  - is there a hot link?                 (a pair that carries far more than the others)
  - who is waited for most?              (the slow rank: the others stand still for it)

Record and draw:
  COLLECTIVE_OPS_TRACE=1 collective-ops run --nproc_per_node 8 train.py
  collective-ops heatmap --trace comm_trace.json --output heatmap.png
"""
EPILOG = """\
How to read the picture:
  bytes     row = the rank they came from, column = the rank they went to; the hottest link is framed
  waiting   row = the rank that waited, column = the rank it waited for: a dark column is a slow rank
  transfer  time that bytes of a pair were moved; where it was measured per call only, split by bytes
  balance   each rank's time: outside of calls (computing, loading data), waiting, moving bytes, other
The first call of each rank in each group is left out (--all-calls keeps it): it absorbs the differences
between the ranks' start, which say nothing about the steady state.

Exit codes: 0 drawn; 2 the arguments or the trace cannot be used.
"""
BALANCED_WITHIN = 0.10  # the longest time outside of calls may exceed the mean by this
HOT_FROM = 1.5  # times the mean of the links in use
MIN_CALLS_TO_SKIP = 3  # the first call is left out of ranks that have more than this


class TraceError(Exception):
    """The trace cannot be used; the text says why and what to do."""


@dataclass
class RankTotals:
    """Microseconds and counts of one rank."""

    calls: int = 0
    failed: int = 0
    begin: float = math.inf
    end: float = -math.inf
    inside: float = 0.0
    waited: float = 0.0
    moved: float = 0.0

    @property
    def window(self) -> float:
        return max(self.end - self.begin, 0.0)

    @property
    def outside(self) -> float:
        return max(self.window - self.inside, 0.0)

    @property
    def other(self) -> float:
        return max(self.inside - self.waited - self.moved, 0.0)


@dataclass
class Traffic:
    """What a trace says, added up. Matrices are [world_size, world_size]; times in microseconds."""

    job: str
    world_size: int
    missing: list[int]
    damaged: dict[int, str]
    bytes: np.ndarray = field(init=False)  # [from, to]
    moved: np.ndarray = field(init=False)  # [from, to]
    waited: np.ndarray = field(init=False)  # [who waited, for whom]
    ranks: list[RankTotals] = field(init=False)
    skipped: int = 0
    skipped_wait: float = 0.0

    def __post_init__(self) -> None:
        shape = (self.world_size, self.world_size)
        self.bytes, self.moved, self.waited = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.ranks = [RankTotals() for _ in range(self.world_size)]

    def index(self, rank: int | str) -> int:
        """Raises IndexError: numpy would take -1 for the last rank."""
        number = int(rank)
        if not 0 <= number < self.world_size:
            raise IndexError(f"rank {rank} of {self.world_size}")
        return number

    def add(self, event: dict[str, Any]) -> None:
        rank, arguments = self.index(event["pid"]), event["args"]
        begin, duration = event["ts"], event["dur"]
        totals = self.ranks[rank]
        totals.calls += 1
        totals.failed += arguments.get("status", "ok") != "ok"
        totals.begin = min(totals.begin, begin)
        totals.end = max(totals.end, begin + duration)
        totals.inside += duration
        totals.waited += arguments.get("waited_us", 0.0)
        totals.moved += arguments.get("moved_us", 0.0)
        for peer, waited in arguments.get("peer_waited_us", {}).items():
            self.waited[rank, self.index(peer)] += waited
        read = arguments.get("peer_read_bytes", {})
        written = arguments.get("peer_written_bytes", {})
        for peer, count in read.items():
            self.bytes[self.index(peer), rank] += count
        for peer, count in written.items():
            self.bytes[rank, self.index(peer)] += count
        self._add_moved(rank, arguments, read, written)

    def _add_moved(self, rank: int, arguments: dict[str, Any], read: dict, written: dict) -> None:
        measured = arguments.get("peer_moved_us")
        total = sum(read.values()) + sum(written.values())
        for peer in {*read, *written}:
            from_peer, to_peer = read.get(peer, 0), written.get(peer, 0)
            both = from_peer + to_peer
            if measured is not None:
                time = measured.get(peer, 0.0)
            else:
                time = arguments.get("moved_us", 0.0) * both / total if total else 0.0
            if both:
                self.moved[self.index(peer), rank] += time * from_peer / both
                self.moved[rank, self.index(peer)] += time * to_peer / both

    def skip(self, event: dict[str, Any]) -> None:
        """A call that is left out; the rank's window begins where it ends."""
        totals = self.ranks[self.index(event["pid"])]
        totals.begin = min(totals.begin, event["ts"] + event["dur"])
        totals.end = max(totals.end, event["ts"] + event["dur"])
        self.skipped += 1
        self.skipped_wait = max(self.skipped_wait, event["args"].get("waited_us", 0.0))


def open_trace(path: Path) -> Any:
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8", errors="replace")
        return path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        hint = ""
        if isinstance(error, FileNotFoundError):
            hint = (
                "; run the job with COLLECTIVE_OPS_TRACE=1, or, where its ranks were killed,"
                " `collective-ops trace merge`"
            )
        raise TraceError(f"{path}: {error.strerror}{hint}") from None


def read_whole(path: Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """A trace that another program has laid out anew: all of it in memory."""
    with open_trace(path) as file:
        try:
            content = json.load(file)
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            raise TraceError(f"{path}: not a trace, or cut short: its JSON breaks at {where}") from None
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path}: not a trace: {error}") from None
    if isinstance(content, list):
        content = {"traceEvents": content}
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise TraceError(f"{path}: not a trace: it has no list `traceEvents`")
    return content, iter(content["traceEvents"])


def read_events(path: Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """The header and the calls of a trace. Ours has an event per line and is read line by line, so that
    memory does not grow with its length."""
    file = open_trace(path)
    head = ""
    try:
        for line in file:
            head += line
            if line.startswith('"traceEvents":['):
                header = json.loads(head + "]}")
                return header, calls_by_line(path, file, head.count("\n"))
            if len(head) > 2**24 or (head.lstrip()[:1] not in ("", "{")):
                break
    except (OSError, EOFError, ValueError):
        pass
    file.close()
    try:
        return read_whole(path)
    except (OSError, EOFError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None


def calls_by_line(path: Path, file: Any, number: int) -> Iterator[dict[str, Any]]:
    closed = False
    with file:
        for line in file:
            number += 1
            if line.startswith("]"):
                closed = True
                break
            if '"cat":"collective"' not in line:
                continue
            try:
                yield json.loads(line.rstrip().rstrip(","))
            except ValueError:
                raise TraceError(
                    f"{path}:{number}: this line is cut short or damaged; merge it again"
                ) from None
    if not closed:
        raise TraceError(f"{path}: cut short after line {number}; merge it again")


def is_call(event: Any) -> bool:
    return (
        isinstance(event, dict) and event.get("cat") == "collective" and isinstance(event.get("args"), dict)
    )


def read_traffic(path: Path, all_calls: bool) -> Traffic:
    header, events = read_events(path)
    ours = header.get("collective_ops") if isinstance(header.get("collective_ops"), dict) else {}
    world_size = ours.get("world_size", 0)
    if not isinstance(world_size, int) or world_size < 1:
        raise TraceError(
            f"{path}: a trace, but not one of collective_ops: it does not say who waited for whom;"
            " record one with COLLECTIVE_OPS_TRACE=1"
        )
    damaged = {rank["rank"]: rank["problem"] for rank in ours.get("ranks", []) if rank.get("problem")}
    counts = {rank["rank"]: rank["calls"] for rank in ours.get("ranks", [])}
    traffic = Traffic(str(ours.get("job", "")), world_size, list(ours.get("missing_ranks", [])), damaged)
    seen: set[tuple[int, int]] = set()
    try:
        for event in filter(is_call, events):
            key = (event["pid"], event["tid"])
            first, _ = key not in seen, seen.add(key)
            if first and not all_calls and counts.get(event["pid"], 0) > MIN_CALLS_TO_SKIP:
                traffic.skip(event)
            else:
                traffic.add(event)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(f"{path}: an event lacks or spoils a column: {error!r}; merge it again") from None
    except (OSError, EOFError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    if not any(rank.calls for rank in traffic.ranks):
        raise TraceError(f"{path}: no calls in it: the job ended before its first collective, or made none")
    return traffic


# --- findings -----------------------------------------------------------------------------------------


def human_bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:,.4g} TiB"


def human_time(microseconds: float) -> str:
    if microseconds < 1e3:
        return f"{microseconds:.3g} us"
    return f"{microseconds / 1e3:.3g} ms" if microseconds < 1e6 else f"{microseconds / 1e6:,.4g} s"


def off_diagonal(matrix: np.ndarray) -> np.ndarray:
    return matrix[~np.eye(len(matrix), dtype=bool)]


def find_balance(traffic: Traffic) -> dict[str, Any]:
    present = {rank: totals.outside for rank, totals in enumerate(traffic.ranks) if totals.calls}
    mean = sum(present.values()) / len(present)
    slowest = max(present, key=present.__getitem__)
    excess = present[slowest] / mean - 1 if mean > 0 else 0.0
    finding = {"balanced": excess <= BALANCED_WITHIN, "rank": slowest, "excess": excess, "mean_us": mean}
    if len(present) == 1:
        finding["text"] = f"Balance: only rank {slowest} made calls, so there is nothing to compare."
    elif finding["balanced"]:
        finding["text"] = (
            f"Balance: the load is even; the most loaded, rank {slowest}, spends {excess:.0%} more time"
            f" outside of calls than the mean ({human_time(mean)})."
        )
    else:
        finding["text"] = (
            f"Balance: the load is uneven; rank {slowest} spends {human_time(present[slowest])} outside of"
            f" calls, {excess:.0%} more than the mean ({human_time(mean)})."
        )
    return finding


def find_hot_link(traffic: Traffic) -> dict[str, Any] | None:
    """The pair with most bytes; where several carry as many, the one that took longest."""
    links = off_diagonal(traffic.bytes)
    used = links[links > 0]
    if used.size == 0:
        return None
    candidates = np.argwhere((traffic.bytes >= used.max() * 0.99) & ~np.eye(traffic.world_size, dtype=bool))
    source, target = max(candidates.tolist(), key=lambda pair: traffic.moved[pair[0], pair[1]])
    times_mean = float(traffic.bytes[source, target] / used.mean())
    hot = times_mean >= HOT_FROM
    size, spent = human_bytes(traffic.bytes[source, target]), human_time(traffic.moved[source, target])
    if hot:
        text = (
            f"Links: hot link rank {source} -> rank {target}: {size} in {spent},"
            f" {times_mean:.1f} times the mean of {used.size} links."
        )
    else:
        text = (
            f"Links: no hot link; of {used.size} in use the hottest is rank {source} -> rank {target}:"
            f" {size} in {spent}, {times_mean:.1f} times the mean."
        )
    return {
        "from": source,
        "to": target,
        "bytes": traffic.bytes[source, target],
        "moved_us": traffic.moved[source, target],
        "times_mean": times_mean,
        "hot": hot,
        "text": text,
    }


def find_most_waited_for(traffic: Traffic) -> dict[str, Any] | None:
    per_peer = traffic.waited.sum(axis=0)
    total = float(per_peer.sum())
    if total <= 0:
        return None
    rank = int(per_peer.argmax())
    share = float(per_peer[rank] / total)
    return {
        "rank": rank,
        "waited_us": float(per_peer[rank]),
        "share": share,
        "text": f"Waiting: rank {rank} is waited for most: {human_time(per_peer[rank])}, {share:.0%} of all"
        f" waiting (an even share is {1 / traffic.world_size:.0%}).",
    }


def find_all(traffic: Traffic) -> dict[str, Any]:
    findings: dict[str, Any] = {
        "balance": find_balance(traffic),
        "hottest_link": find_hot_link(traffic),
        "most_waited_for": find_most_waited_for(traffic),
    }
    sentences = [finding["text"] for finding in findings.values() if finding]
    if findings["hottest_link"] is None:
        sentences.append("Links: no bytes passed between ranks.")
    if findings["most_waited_for"] is None:
        sentences.append("Waiting: no rank waited for another.")
    findings["sentences"] = sentences
    findings["notes"] = notes(traffic)
    return findings


def notes(traffic: Traffic) -> list[str]:
    found = []
    if traffic.skipped:
        found.append(
            "the first call of each rank and group is left out: it absorbs differences in start "
            f"(up to {human_time(traffic.skipped_wait)})"
        )
    if traffic.missing:
        found.append(f"no trace of rank {', '.join(map(str, traffic.missing))}")
    found += [f"rank {rank}: {problem}" for rank, problem in sorted(traffic.damaged.items())]
    failed = {rank: totals.failed for rank, totals in enumerate(traffic.ranks) if totals.failed}
    found += [f"rank {rank}: {count} call{'s' * (count > 1)} failed" for rank, count in failed.items()]
    return found


def as_json(path: Path, traffic: Traffic, findings: dict[str, Any]) -> str:
    balance = [
        {
            "rank": rank,
            "calls": totals.calls,
            "window_us": totals.window,
            "outside_us": totals.outside,
            "waited_us": totals.waited,
            "moved_us": totals.moved,
            "other_us": totals.other,
        }
        for rank, totals in enumerate(traffic.ranks)
    ]
    content = {
        "trace": str(path),
        "job": traffic.job,
        "world_size": traffic.world_size,
        "bytes": traffic.bytes.astype(np.int64).tolist(),
        "moved_us": traffic.moved.round(3).tolist(),
        "waited_us": traffic.waited.round(3).tolist(),
        "balance": balance,
        "findings": findings,
    }
    return json.dumps(content, indent=1) + "\n"


def replace_file(path: Path, write: Any) -> None:
    """`write(temporary)` and then one rename: nobody sees half a file."""
    if not path.name or path.is_dir():
        raise TraceError(f"{str(path)!r} is a folder: give a file's name to write to")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def make_parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description=HELP,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--trace",
        type=Path,
        default=Path("comm_trace.json"),
        metavar="FILE",
        help="comm_trace.json, or .json.gz (%(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("heatmap.png"),
        metavar="FILE",
        help=".png, .svg or .pdf (%(default)s)",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="the numbers of the picture, too; - is standard output"
    )
    parser.add_argument("--all-calls", action="store_true", help="keep the first call of each rank")
    return parser


def main(arguments: list[str] | None = None, program: str = "comm_heatmap.py") -> int:
    options = make_parser(program).parse_args(arguments)
    try:
        if options.output.suffix not in (".png", ".svg", ".pdf"):
            raise TraceError(f"--output {options.output}: expected a name that ends in .png, .svg or .pdf")
        traffic = read_traffic(options.trace, options.all_calls)
        findings = find_all(traffic)
        try:
            from ._heatmap_picture import draw
        except ImportError as error:
            raise TraceError(f"drawing needs matplotlib: pip install matplotlib ({error})") from None
        replace_file(options.output, lambda path: draw(traffic, findings, path))
        if options.json not in (None, "-"):
            text = as_json(options.trace, traffic, findings)
            replace_file(Path(options.json), lambda path: path.write_text(text))
    except TraceError as error:
        print(f"collective-ops heatmap: {error}", file=sys.stderr)
        return 2
    report = sys.stderr if options.json == "-" else sys.stdout
    if options.json == "-":
        sys.stdout.write(as_json(options.trace, traffic, findings))
    for sentence in findings["sentences"]:
        print(sentence, file=report)
    for note in findings["notes"]:
        print(f"Note: {note}.", file=report)
    print(f"Drawn: {options.output}", file=report)
    return 0
