"""The command `collective-ops`. A subcommand is one row of the table: its name, its line of help, a
function that adds its arguments, and one that runs it and returns the exit code. Imports stay inside."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path


def _trace_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    merge = actions.add_parser(
        "merge",
        help="make comm_trace.json from the raw files that killed ranks left",
        epilog="Exit code: 0 where all ranks were merged; 1 where one is missing, or there are none.",
    )
    merge.add_argument(
        "directory",
        nargs="?",
        type=Path,
        help="where they lie (default: COLLECTIVE_OPS_TRACE_DIR, else here)",
    )
    merge.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default: comm_trace.json in that directory"
    )
    merge.add_argument("--job", default="", metavar="ID", help="default: the job that started last")
    merge.add_argument("--keep", action="store_true", help="leave the raw files where they are")


def _trace(options: argparse.Namespace) -> int:
    from collective_ops import trace

    summary = trace.merge(
        options.directory or trace.trace_directory(), options.output, job=options.job, keep=options.keep
    )
    print(summary.text.rstrip())
    return 0 if summary.complete else 1


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    from collective_ops import launch

    launch.add_arguments(parser)


def _run(options: argparse.Namespace) -> int:
    from collective_ops import launch

    return launch.run(options)


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    from collective_ops import status

    status.add_arguments(parser)


def _status(options: argparse.Namespace) -> int:
    from collective_ops import status

    return status.run(options)


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    from collective_ops import doctor

    doctor.add_arguments(parser)


def _doctor(options: argparse.Namespace) -> int:
    from collective_ops import doctor

    return doctor.run(options)


def _topo_arguments(parser: argparse.ArgumentParser) -> None:
    from collective_ops import topo

    topo.add_arguments(parser)


def _topo(options: argparse.Namespace) -> int:
    from collective_ops import topo

    return topo.run(options)


def _analyze_arguments(parser: argparse.ArgumentParser) -> None:
    from collective_ops import analyze

    analyze.add_arguments(parser)


def _analyze(options: argparse.Namespace) -> int:
    from collective_ops import analyze

    return analyze.run(options)


def _tune_arguments(parser: argparse.ArgumentParser) -> None:
    from collective_ops import tune

    tune.add_arguments(parser)


def _tune(options: argparse.Namespace) -> int:
    from collective_ops import tune

    return tune.run(options)


def _profile_arguments(parser: argparse.ArgumentParser) -> None:
    from collective_ops.profiler import command

    command.add_arguments(parser)


def _profile(options: argparse.Namespace) -> int:
    from collective_ops.profiler import command

    return command.run(options)


def _no_arguments(_parser: argparse.ArgumentParser) -> None:
    """Of a command that `_AS_THEY_STAND` has: it reads them itself."""


def _perf(arguments: list[str]) -> int:
    from collective_ops import perf

    return perf.run(arguments)


def _heatmap(arguments: list[str]) -> int:
    from collective_ops import heatmap  # which needs numpy

    return heatmap.main(arguments, "collective-ops heatmap")


_COMMANDS: tuple[tuple[str, str, Callable, Callable], ...] = (
    ("run", "start the ranks of a training program on this host", _run_arguments, _run),
    ("status", "show what the ranks of a job do, and who waits for whom", _status_arguments, _status),
    ("doctor", "check this machine, with the next step for each finding", _doctor_arguments, _doctor),
    ("topo", "show this host and the speed of its links", _topo_arguments, _topo),
    ("tune", "show what this machine costs, and which algorithm a call takes", _tune_arguments, _tune),
    ("perf", "measure a collective, in the layout of hccl_test or nccl-tests", _no_arguments, _perf),
    ("analyze", "say where the time of profiled ranks went, and who is slow", _analyze_arguments, _analyze),
    ("profile", "list, parse anew and bring together recorded profiles", _profile_arguments, _profile),
    ("trace", "work with recorded traces", _trace_arguments, _trace),
    ("heatmap", "draw who sent what to whom, and who waited for whom", _no_arguments, _heatmap),
)
# These get their arguments as they stand, help included.
_AS_THEY_STAND = {"perf": _perf, "heatmap": _heatmap}


class _Version(argparse.Action):
    """Imports the core only where it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_given: object) -> None:
        from collective_ops import __version__

        print(f"collective-ops {__version__}")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="collective-ops",
        description="Collective communication for multi-process training.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and leave")
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    for name, text, add_arguments, run in _COMMANDS:
        command = commands.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
        )
        add_arguments(command)
        command.set_defaults(execute=run, parser=command)
    return parser


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in _AS_THEY_STAND:
        return _report_errors(arguments[0], lambda: _AS_THEY_STAND[arguments[0]](arguments[1:]))
    options, unknown = make_parser().parse_known_args(arguments)
    if unknown:  # by the subcommand's parser, so that its usage is shown and not the whole command's
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return _report_errors(options.name, lambda: options.execute(options))


def _report_errors(name: str, run: Callable[[], int]) -> int:
    try:
        code = run()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # who read, as `head` does, has seen enough; nothing more may be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"collective-ops {name}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
