"""Analysis of the profiles of many ranks: where the time went, which rank is slow, and why. The C++ module
`_analysis` reads and computes; docs/analysis.md says what and how.

    report = collective_ops.analyze.cluster("profiles/")
    for slow in report.data["slow_ranks"]:
        print(slow["rank"], slow["late_ms"], slow["cause"])
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import analysis_tables

if TYPE_CHECKING:
    import pandas
    import pyarrow

COMPLETE, FAILED, NOTHING, PARTIAL = 0, 1, 2, 3  # exit codes

_EPILOG = """\
DIR holds the profiles of all ranks at any depth, mixed or not: traces of torch.profiler (*.json, *.json.gz),
directories of the Ascend profilers (*_ascend_pt, *_ascend_ms; text or db export), comm_trace.json
of COLLECTIVE_OPS_TRACE=1, dumps of PyTorch's flight recorder, archives (*.zip, *.tar, *.tar.gz) of these.
Several may be given, files too. The ranks' own files are only read.

modes:
{modes}

examples:
  collective-ops analyze cluster -d ./profiler/                    into ./profiler/cluster_analysis_output/
  collective-ops analyze cluster -d ./profiler/ -m slow_rank       who holds the others up
  collective-ops analyze cluster -d ./profiler/ -o /tmp/run1 --json | jq .slow_ranks
  collective-ops analyze cluster -d ./profiler/ -m timeline        one timeline of all ranks, for Perfetto

exit codes: 0 all ranks; 3 some profiles are missing, damaged or left out (the rest is analysed, and the
summary names them); 2 nothing that can be used; 1 results could not be written
"""


@dataclass(frozen=True)
class ClusterReport:
    """What an analysis found. `text` is the summary for people, `data` the same as Python objects (keys in
    docs/analysis.md), `partial` whether some profile is missing, damaged or left out."""

    text: str
    partial: bool
    data: dict[str, Any] = field(repr=False)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that were written."""
        return tuple(Path(file) for file in self.data["files"])

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that were written: "summary", "operator_time" ..."""
        return tuple(file.stem for file in self.files if file.suffix == ".csv")

    def _table(self, name: str) -> Path:
        for file in self.files:
            if file.suffix == ".csv" and file.stem == name:
                return file
        raise KeyError(f"no table {name}; there are {', '.join(self.tables) or 'none'}")

    def table(self, name: str) -> dict[str, list[Any]]:
        """One of `tables` as columns. Raises KeyError for any other name."""
        return analysis_tables.read(self._table(name))

    def arrow(self, name: str) -> pyarrow.Table:
        """The same as an Arrow table; ImportError without pyarrow."""
        return analysis_tables.arrow(self._table(name))

    def pandas(self, name: str) -> pandas.DataFrame:
        """The same as a pandas frame; ImportError without pandas."""
        return analysis_tables.frame(self._table(name))

    def write_parquet(self) -> list[Path]:
        """Each table as Parquet, beside it; ImportError without pyarrow."""
        return [analysis_tables.write_parquet(self._table(name)) for name in self.tables]


def modes() -> dict[str, str]:
    """The modes of `cluster`, each with one line of help."""
    from . import _analysis

    return dict(_analysis.cluster_modes)


Place = str | os.PathLike[str]


def _output_of(given: Sequence[Path]) -> Path:
    """Where results go if nobody says it: the one place that the inputs share."""
    folders = {path if path.is_dir() else path.absolute().parent for path in given}
    if len(folders) > 1:
        raise ValueError("the profiles lie in several places: say with -o where the results go")
    return folders.pop()


def cluster(
    profiles: Place | Sequence[Place],
    mode: str = "all",
    output: Place | None = None,
    *,
    ranks: Mapping[Place, int] | None = None,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ClusterReport:
    """Analyses profiles: those below a directory, a file, an archive, or a list of these.

    Args:
        mode: a key of `modes()`.
        output: results go to `cluster_analysis_output/` below it; default: the directory, or the files'.
        ranks: of files that do not say it themselves, the rank; stands above what their names say.
        threads: profiles read at once; 0: one per core.
        progress: called with (profiles read, profiles in all) a few times a second.

    Raises:
        ValueError: an unknown mode, no profile that can be used, none with what the mode needs, or a file of
            `ranks` that is not there.
        OSError: a result cannot be written.
    """
    from . import _analysis
    from .analysis_inputs import PreparedInputs

    given = _as_paths(profiles)
    place = b"" if output is None and len(given) == 1 else os.fsencode(output or _output_of(given))
    with PreparedInputs(given) as inputs:
        if not place and not given[0].is_dir():
            place = os.fsencode(given[0].absolute().parent)
        problems = [(os.fsencode(path), text.encode()) for path, text in inputs.problems]
        found = _analysis.analyze_cluster(
            inputs.paths, problems, _known_ranks(ranks), place, mode, threads, progress
        )
    return ClusterReport(found["text"], found["partial"], json.loads(found["json"]))


def _as_paths(places: Place | Sequence[Place]) -> list[Path]:
    given = [Path(p) for p in ([places] if isinstance(places, str | os.PathLike) else places)]
    if not given:
        raise ValueError("no profiles are given")
    return given


def _known_ranks(ranks: Mapping[Place, int] | None) -> dict[bytes, int]:
    known: dict[bytes, int] = {}
    for file, rank in (ranks or {}).items():
        if not os.path.exists(file):
            raise ValueError(f"there is no file {os.fspath(file)}, whose rank was given")
        known[os.fsencode(os.path.realpath(file))] = rank
    return known


def shard(
    profiles: Place | Sequence[Place],
    path: Place,
    *,
    ranks: Mapping[Place, int] | None = None,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[str, bool]:
    """Reads the profiles of some ranks, those of one host for instance, into the small file `path`, for
    `merge`. The arguments are those of `cluster`.

    Returns:
        A summary, and whether some profile is damaged or left out.
    """
    from . import _analysis
    from .analysis_inputs import PreparedInputs

    with PreparedInputs(_as_paths(profiles)) as inputs:
        problems = [(os.fsencode(file), text.encode()) for file, text in inputs.problems]
        return _analysis.make_shard(
            inputs.paths, problems, _known_ranks(ranks), os.fsencode(path), threads, progress
        )


def merge(shards: Place | Sequence[Place], mode: str = "all", output: Place | None = None) -> ClusterReport:
    """Analyses what `shard` read, on all hosts together: the result of `cluster` on all their profiles.
    Results go below `output`, or beside the first shard. Raises what `cluster` raises."""
    from . import _analysis

    files = [os.fsencode(path) for path in _as_paths(shards)]
    found = _analysis.merge_shards(files, os.fsencode(output) if output is not None else b"", mode)
    return ClusterReport(found["text"], found["partial"], json.loads(found["json"]))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, help_text: str, description: str) -> argparse.ArgumentParser:
        return actions.add_parser(
            name,
            help=help_text,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    try:
        known = modes()
    except ImportError:  # not built: the help of other commands must still work
        known = {}
    text = "Says where the time of a job went, which rank and which link is slow, and why."
    command = action("cluster", "the profiles of all ranks together", text)
    command.epilog = _EPILOG.format(modes="\n".join(f"  {name:22}{text}" for name, text in known.items()))
    _add_inputs(command)
    _add_results(command)
    part = action(
        "shard",
        "read the ranks of one host into a small file",
        "Reads some ranks' profiles, where they lie, for `analyze merge`.",
    )
    _add_inputs(part)
    part.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="the shard")
    part.epilog = (
        "example, on each host:\n  collective-ops analyze shard -d ./profiler/ -o shared/$(hostname).db"
    )
    joined = action(
        "merge",
        "analyse the shards of all hosts",
        "The result of `analyze cluster` on all profiles, from the shards of all hosts.",
    )
    joined.add_argument("shards", nargs="+", type=Path, metavar="SHARD", help="of `analyze shard`")
    _add_results(joined)


def _add_inputs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-d",
        "--dir",
        required=True,
        nargs="+",
        type=Path,
        metavar="DIR",
        help="the ranks' profiles: directories, files, archives",
    )
    command.add_argument(
        "--rank",
        action="append",
        default=[],
        type=_rank_of_file,
        metavar="FILE=N",
        help="the rank of a file that does not say it; may be given again",
    )
    command.add_argument(
        "--threads", type=int, default=0, metavar="N", help="profiles read at once (default: one per core)"
    )


def _add_results(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-m", "--mode", default="all", metavar="MODE", help="see `analyze cluster --help` (default: all)"
    )
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="results go to OUT/cluster_analysis_output (default: where the input lies)",
    )
    command.add_argument("--json", action="store_true", help="print JSON in place of the summary")
    command.add_argument(
        "--parquet", action="store_true", help="write the tables as Parquet too (needs pyarrow)"
    )


def _rank_of_file(text: str) -> tuple[Path, int]:
    file, equals, rank = text.rpartition("=")
    if not equals or not file or not rank.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not FILE=N")
    return Path(file), int(rank)


class _Progress:
    """A bar on standard error, drawn over on a terminal; elsewhere a line every ten seconds."""

    WIDTH = 30

    def __init__(self) -> None:
        self.terminal = sys.stderr.isatty()
        self.begun = time.monotonic()
        self.next = self.begun + (0.5 if self.terminal else 10)
        self.shown = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + (0.2 if self.terminal else 10)
        self.shown = True
        text = f"read {done} of {total} profiles"
        if self.terminal:
            text = f"\r{self.bar(done, total)} {text}{self.left(done, total, now)}\x1b[K"
        print(text, end="" if self.terminal else "\n", file=sys.stderr, flush=True)

    def bar(self, done: int, total: int) -> str:
        full = self.WIDTH * done // max(total, 1)
        return f"[{'#' * full}{'.' * (self.WIDTH - full)}]"

    def left(self, done: int, total: int, now: float) -> str:
        if done == 0 or done == total:
            return ""
        return f", about {(now - self.begun) / done * (total - done):.0f} s left"

    def close(self) -> None:
        if self.shown and self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names of any language, on terminals of any
            stream.reconfigure(errors="backslashreplace")
    progress = _Progress()
    try:
        return _run(options, progress)
    except ValueError as error:
        print(f"collective-ops analyze: {error}", file=sys.stderr)
        return NOTHING
    except (OSError, ImportError) as error:
        print(f"collective-ops analyze: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("collective-ops analyze: interrupted; no result is half-written", file=sys.stderr)
        return 130
    finally:
        progress.close()


def _run(options: argparse.Namespace, progress: _Progress) -> int:
    if options.action == "shard":
        text, partial = shard(
            options.dir,
            options.output,
            ranks=dict(options.rank),
            threads=options.threads,
            progress=progress,
        )
        progress.close()
        print(text.rstrip())
        return PARTIAL if partial else COMPLETE
    if options.action == "merge":
        report = merge(options.shards, options.mode, options.output)
    else:
        report = cluster(
            options.dir,
            options.mode,
            options.output,
            ranks=dict(options.rank),
            threads=options.threads,
            progress=progress,
        )
    progress.close()
    if options.parquet:
        report.write_parquet()
    print(json.dumps(report.data, indent=1) if options.json else report.text.rstrip())
    return PARTIAL if report.partial else COMPLETE
