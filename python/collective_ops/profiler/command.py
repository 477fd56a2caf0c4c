"""`collective-ops profile`: profiles that lie on disk."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from . import alignment, gather, outputs, runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    shown = actions.add_parser("list", help="show the profiles below a folder: run, rank, steps")
    parsed = actions.add_parser(
        "parse",
        help="make the output files anew from the raw data, as for a job that died",
        epilog="Exit code: 0; 1 where a profile cannot be used; 3 where some of it is missing.",
    )
    brought = actions.add_parser(
        "gather",
        help="bring the profiles of all ranks to one folder",
        description="In a job's ranks (collective-ops run ... -m collective_ops profile gather -d DIR) it "
        "brings all ranks' profiles to rank 0's host, over the job's own communicator; alone it brings those "
        "below DIR into one layout.",
    )
    for action in (shown, parsed, brought):
        action.add_argument("-d", "--directory", type=Path, required=True, metavar="DIR")
    brought.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="alone: copy there, as RANK/PROFILE"
    )
    brought.add_argument("--run", default="", metavar="ID", help="which run's (default: the last one)")


def run(options: argparse.Namespace) -> int:
    if not options.directory.is_dir() and options.action != "gather":
        raise ValueError(f"there is no directory {options.directory}")
    return {"list": _list, "parse": _parse, "gather": _gather}[options.action](options)


def _found(root: Path) -> list[runs.Found]:
    own = runs.info_of(root).get(runs.MARK)
    if isinstance(own, dict):
        return [runs.Found(root, str(own.get("run", "")), int(runs.info_of(root).get("rank_id", 0)), "")]
    found = runs.find_profiles(root, depth=8)
    if not found:
        raise ValueError(
            f"below {root} lies no profile that collective-ops made: "
            "no ..._ascend_pt with a profiler_info_RANK.json of ours"
        )
    return found


def _list(options: argparse.Namespace) -> int:
    found = _found(options.directory)
    print(f"{'run':16}  {'rank':>4}  {'steps':12}  {'written':7}  path")
    for profile in found:
        steps = runs.info_of(profile.path)[runs.MARK].get("steps", [])
        text = f"{steps[0]}-{steps[-1]} ({len(steps)})" if steps else "none"
        done = "yes" if (profile.path / "analyse.done").exists() else "no"
        print(f"{profile.run:16}  {profile.rank:4}  {text:12}  {done:7}  {profile.path}")
    several = sorted({profile.run for profile in found})
    if len(several) > 1:
        print(f"{len(several)} runs lie here: analyse each folder of its own, or remove the old ones")
    return 0


def _parse(options: argparse.Namespace) -> int:
    code = 0
    found = _found(options.directory)
    for line in alignment.align(found)[1]:
        print(line)
    for profile in found:
        try:
            problems = outputs.write(profile.path)
        except ValueError as error:
            print(error, file=sys.stderr)
            code = 1
            continue
        print(f"rank {profile.rank}: {profile.path / runs.OUTPUT}")
        for problem in problems:
            print(f"  {problem}")
            code = code or 3
    return code


def _gather(options: argparse.Namespace) -> int:
    world = int(os.environ.get("WORLD_SIZE") or 1)
    if world > 1:
        import collective_ops

        collective_ops.init_hccl()
        options.directory.mkdir(parents=True, exist_ok=True)
        got = gather.in_job(options.directory, collective_ops.rank(), world, options.run)
        collective_ops.finalize()
        if got is None:
            return 0
        print(
            f"run {got.run}: profiles of ranks {', '.join(map(str, got.ranks)) or 'none'} "
            f"in {options.directory}: "
            f"{got.files} files came ({got.bytes / 1e6:.1f} MB), {got.kept} were there"
        )
        _tell_of_others(got.other_runs)
        for line in got.clocks:
            print(line)
        for problem in got.problems:
            print(problem, file=sys.stderr)
        return 1 if got.problems else 0
    target = options.output or options.directory
    try:
        found, others = gather.flatten(options.directory, target, options.run)
    except ValueError as error:
        raise ValueError(f"below {options.directory}: {error}") from None
    ranks = sorted({profile.rank for profile in found})
    worlds = {runs.info_of(p.path).get(runs.MARK, {}).get("world_size", 0) for p in found}
    print(f"run {found[0].run}: profiles of ranks {', '.join(map(str, ranks))} of {max(worlds)} in {target}")
    _tell_of_others(others)
    for line in gather.align(target, found[0].run):
        print(line)
    return 0


def _tell_of_others(others: Iterable[str]) -> None:
    if others:
        print(f"profiles of other runs were left alone: {', '.join(others)}; --run takes one of these")
