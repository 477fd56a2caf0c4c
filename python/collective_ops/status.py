"""`collective-ops status`: what the ranks of a job do, who waits for whom, and since when.

Works on a job that runs, hangs, or has lost ranks, and never disturbs it; `--trace` tells the same of a job
that has ended, as far as its trace files do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import _core
from .jobs import STATES, Group, Rank, find_groups
from .trace import job_hash

EXAMPLES = """\
examples:
  collective-ops status                 lists the jobs of this user on this host
  collective-ops status 4711            the job of process 4711: a rank, the launcher, or the shell
  collective-ops status my-job          the job with this COLLECTIVE_OPS_JOB_ID
  collective-ops status --trace runs/   the last calls that the ranks of an ended job recorded
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("job", nargs="?", metavar="PID|JOB", help="default: list all jobs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=2.0,
        metavar="SECONDS",
        help="repeat, every 2 s by default, until Ctrl-C",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="DIR", help="of ended ranks: read their trace files there"
    )
    parser.add_argument("--last", type=int, default=1, metavar="N", help="with --trace: N calls of each rank")


def run(options: argparse.Namespace) -> int:
    if options.trace is not None:
        return _run_trace(options)
    try:
        while True:
            code, text = _report(options)
            if options.watch is not None and sys.stdout.isatty() and not options.json:
                text = "\x1b[H\x1b[2J" + text
            print(text, flush=True)
            if options.watch is None:
                return code
            time.sleep(max(0.1, options.watch))
    except KeyboardInterrupt:
        return 0


def _report(options: argparse.Namespace) -> tuple[int, str]:
    groups = find_groups()
    chosen = groups if options.job is None else select(groups, options.job)
    if options.json:
        return 0 if chosen else 1, json.dumps(as_data(chosen))
    if chosen:
        return 0, overview(chosen) if options.job is None else "\n\n".join(map(describe, chosen))
    if options.job is None:
        return 1, "No job of this user runs on this host (or its ranks are in another container)."
    known = f"\n\n{overview(groups)}" if groups else " No job of this user runs on this host."
    return 1, f"There is no job or process {options.job!r} with ranks that have begun to join.{known}"


def select(groups: Iterable[Group], wanted: str) -> list[Group]:
    """The groups of a job, by its id as the user wrote it or as ranks know it, else of a process."""
    groups = list(groups)
    by_name = [group for group in groups if group.job and wanted in (group.job, short_name(group.job))]
    if by_name or not wanted.isdigit():
        return by_name
    return [group for group in groups if group.belongs_to(int(wanted))]


# --- What is wrong ---------------------------------------------------------------------------------


def findings(group: Group) -> list[str]:
    """What a reader should know of a group, in sentences; the most important first."""
    if group.problem:
        return [group.problem]
    if not group.ranks:
        pids = ", ".join(str(process.pid) for process in group.processes)
        return [f"The ranks have not all come yet; waiting since its start: process {pids}."]
    texts = []
    if group.failure_code:
        running = [rank for rank in group.ranks if rank.process_state]
        texts.append(
            f"The group is broken ({group.failure_code}): {group.failure.rstrip('.')}. "
            f"Every later call fails; {_ranks(running)} of it still {_verb(running, 'lives', 'live')}."
        )
    dead = [rank for rank in group.ranks if rank.activity == "dead"]
    if dead:
        who = ", ".join(f"rank {rank.number} (process {rank.pid}, {_progress(rank)})" for rank in dead)
        texts.append(f"Died: {who}. The reason stands in the rank's own log, or in the kernel's (dmesg).")
    if not group.failure_code:
        texts += _waits(group)
        texts += [
            _waits_elsewhere(rank)
            for rank in group.ranks
            if rank.elsewhere and rank.activity != "dead" and group.is_world
        ]
    return texts or ["Nobody waits: all ranks work, or stand outside of any call."]


def _waits(group: Group) -> list[str]:
    waiters: dict[tuple[int, str, tuple[int, ...]], list[Rank]] = defaultdict(list)
    for rank in group.ranks:
        if rank.activity == "waiting":
            waiters[rank.issued, rank.call, tuple(_blockers(group, rank))].append(rank)
    texts = []
    for (number, call, blockers), waiting in sorted(waiters.items()):
        longest = max(rank.waited_s or 0.0 for rank in waiting)
        reasons = "; ".join(_where(group.ranks[blocker], number) for blocker in blockers)
        texts.append(
            f"{_ranks(waiting).capitalize()} {_verb(waiting, 'waits', 'wait')} in call #{number}"
            f"{f' ({call})' if call else ''}, for {longest:.1f} s, for {reasons}"
        )
    return texts


def _blockers(group: Group, waiter: Rank) -> list[int]:
    """The ranks that a wait ends with: those that have not begun the call, else who is at work in it."""
    missing = [rank for rank in group.ranks if rank.issued < waiter.issued]
    if missing:
        roots = [rank for rank in missing if rank.activity != "waiting"]
        return [rank.rank for rank in roots or missing]
    seen = [waiter.rank]
    following = waiter.waits_for
    while following is not None and following not in seen:
        seen.append(following)
        following = group.ranks[following].waits_for
    return [seen[-1]]


def _where(rank: Rank, number: int) -> str:
    """Where the rank is that others wait for in call `number`, and what to do about it."""
    pid = rank.pid
    look = _look(rank)
    state = f"process {pid}, state {rank.process_state or '-'} ({STATES.get(rank.process_state, 'gone')})"
    if rank.activity == "dead":
        return f"rank {rank.number}, which has died (process {pid}). See its own log."
    if rank.activity == "left":
        return f"rank {rank.number}, which has left the job. Did it make fewer steps than the others?"
    if rank.activity == "absent":
        return f"rank {rank.number}, which has not joined yet."
    if rank.process_state in ("T", "t"):
        return (
            f"rank {rank.number}, which {_progress(rank)} and is stopped ({state}). Go on: kill -CONT {pid}."
        )
    if rank.activity == "outside":
        if rank.elsewhere:
            meanwhile = f"{_progress(rank)}; meanwhile it {rank.elsewhere}"
            return f"rank {rank.number}, which {meanwhile} ({state}). {look}"
        return f"rank {rank.number}, which {_progress(rank)} and is outside of any call ({state}). {look}"
    where = "the same call" if rank.issued == number else f"call #{rank.issued}"
    return f"rank {rank.number}, which is in {where} ({state}). {look}"


def _waits_elsewhere(rank: Rank) -> str:
    text = f"Rank {rank.number} {rank.elsewhere}."
    if "in recv" in rank.elsewhere or "in send" in rank.elsewhere:
        text += " A message needs its counterpart: the same tag, between ranks that name each other."
    return f"{text} {_look(rank)}"


def _look(rank: Rank) -> str:
    return f"See where it stands: `py-spy dump --pid {rank.pid}`."


def _progress(rank: Rank) -> str:
    if rank.issued == 0:
        return "has made no call yet"
    verb = "finished" if rank.finished == rank.issued else "was in"
    return f"{verb} call #{rank.issued}{f' ({rank.call})' if rank.call else ''}"


def _ranks(ranks: Sequence[Rank]) -> str:
    """rank 3; ranks 0-6,9"""
    numbers = sorted(rank.number for rank in ranks)
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    text = ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {text}" if numbers else "no rank"


def _verb(ranks: Sequence[Rank], one: str, more: str) -> str:
    return one if len(ranks) <= 1 else more


def _activity(rank: Rank) -> str:
    return "elsewhere" if rank.activity == "outside" and rank.elsewhere else rank.activity


def state_of(group: Group) -> str:
    """One word for a group: unreadable, starting, broken, lost, waiting, running, leaving."""
    activities = {rank.activity for rank in group.ranks}
    if group.problem or not group.ranks:
        return "unreadable" if group.problem else "starting"
    if group.failure_code or "dead" in activities:
        return "broken" if group.failure_code else "lost ranks"
    if "waiting" in activities or any(rank.elsewhere for rank in group.ranks):
        return "waiting"
    return "leaving" if "left" in activities else "running"


# --- Tables ----------------------------------------------------------------------------------------


def describe(group: Group) -> str:
    """A group's ranks as a table, and what is wrong."""
    rows = [("rank", "process", "state", "call", "waits for", "for")]
    for rank in group.ranks:
        waiting = rank.waits_for is not None
        call = f"#{rank.issued} {rank.call or '(not announced yet)'}" if rank.issued else "none yet"
        if rank.issued and rank.finished == rank.issued:
            call += ", finished"
        stopped = ", stopped" if rank.process_state in ("T", "t") else ""
        rows.append(
            (
                str(rank.number),
                str(rank.pid or "-"),
                _activity(rank) + stopped,
                call,
                f"rank {group.ranks[rank.waits_for].number}" if waiting else "-",
                f"{rank.waited_s:.1f} s" if waiting and rank.waited_s is not None else "-",
            )
        )
    label = f", {group.label}" if group.label else ""
    name = _printable(short_name(group.job))
    title = f"job {name!r}{_printable(label)}: {len(group.ranks)} ranks, {state_of(group)}"
    return "\n".join([title, *(_table(rows) if group.ranks else []), *map(_printable, findings(group))])


def overview(groups: Sequence[Group]) -> str:
    """All jobs, a line each."""
    rows = [("job", "group", "ranks", "processes", "state")]
    for group in groups:
        pids = [process.pid for process in group.processes]
        shown = ",".join(map(str, pids[:8])) + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")
        rows.append(
            (
                _printable(short_name(group.job)) or "-",
                _printable(group.label) or "all ranks",
                str(len(group.ranks) or "?"),
                shown,
                state_of(group),
            )
        )
    lines = [*_table(rows), "collective-ops status PID or JOB shows the ranks of one."]
    for job, count in Counter(group.job for group in groups if group.job and group.is_world).items():
        if count > 1:
            lines.append(
                f"{count} jobs are called {_printable(short_name(job))!r}: name one of them by a PID."
            )
    return "\n".join(lines)


def short_name(job: str) -> str:
    """As users know it: the id that they gave, or the process that has started the ranks."""
    if found := re.fullmatch(r"user \d+ under (process \d+) started at \d+", job):
        return f"under {found[1]}"
    return job.removeprefix("id ")


def as_data(groups: Sequence[Group]) -> dict[str, Any]:
    """For `--json`."""
    return {
        "groups": [
            dataclasses.asdict(group) | {"state": state_of(group), "findings": findings(group)}
            for group in groups
        ]
    }


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _printable(text: str) -> str:
    """Without what would move a terminal's cursor."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


# --- After the end ---------------------------------------------------------------------------------


def read_traces(folder: Path, count: int, job: str | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """What each rank's file in `folder` says last, by rank: of one job, by default the one started last; and
    the other jobs that have files there.

    Raises ValueError where there is nothing to read."""
    hashes = [job_hash(f"id {job}"), job_hash(job)] if job else ["*"]
    patterns = [f"comm_trace.{name}.rank*.bin" for name in hashes]
    files, problems = [], []
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        try:
            files.append(_core.last_calls(str(path), count))
        except (RuntimeError, ValueError) as error:
            problems.append(str(error))
    if not files:
        why = "; ".join(problems) or f"no {' and no '.join(patterns)}"
        raise ValueError(
            f"{folder}: no rank's trace file to read ({why}). They exist while ranks record "
            "(COLLECTIVE_OPS_TRACE=1) or after a crash; a job that ended well has comm_trace.json instead"
        )
    newest = max(files, key=lambda file: file["opened_unix_ns"])
    same = [file for file in files if (file["job"], file["run"]) == (newest["job"], newest["run"])]
    others = sorted({file["job"] for file in files} - {newest["job"]})
    return sorted(same, key=lambda file: file["rank"]), others


def trace_findings(files: Sequence[dict[str, Any]], others: Sequence[str] = ()) -> list[str]:
    texts = [
        f"Files of another job lie there too: collective-ops status {job.removeprefix('id ')!r} --trace DIR."
        for job in others
    ]
    missing = sorted(set(range(files[0]["world_size"])) - {file["rank"] for file in files})
    if missing:
        texts.append(f"No file of rank {', '.join(map(str, missing))}.")
    killed = [str(file["rank"]) for file in files if not file["closed"] and not file["recording_pid"]]
    if killed:
        texts.append(f"Ended without closing its file (killed, or crashed): rank {', '.join(killed)}.")
    last = {file["rank"]: file["calls"][-1] for file in files if file["calls"]}
    if len(last) > 1 and len({call["group"] for call in last.values()}) == 1:
        low = min(call["sequence"] for call in last.values())
        high = max(call["sequence"] for call in last.values())
        behind = [str(rank) for rank, call in last.items() if call["sequence"] == low]
        if low < high:
            texts.append(
                f"Furthest behind: rank {', '.join(behind)} with call #{low}, others reached #{high}."
            )
    for file in files:
        if file["problem"]:
            texts.append(f"rank {file['rank']}: {file['problem']}")
    return [*texts, "A call that had not ended is not recorded: the next one is where a rank stood."]


def _run_trace(options: argparse.Namespace) -> int:
    files, others = read_traces(options.trace, max(1, options.last), options.job)
    if options.json:
        print(json.dumps({"ranks": files, "findings": trace_findings(files, others)}))
        return 0
    rows = [("rank", "process", "end", "last calls", "result", "waited for", "at")]
    for file in files:
        end = "still runs" if file["recording_pid"] else "left" if file["closed"] else "killed"
        for call in file["calls"] or [None]:
            rows.append((str(file["rank"]), str(file["pid"]), end, *_call_cells(call)))
    name = _printable(files[0]["job"].removeprefix("id "))
    print(f"job {name!r}: {files[0]['world_size']} ranks, from {options.trace}")
    print("\n".join([*_table(rows), *map(_printable, trace_findings(files, others))]))
    return 0


def _call_cells(call: dict[str, Any] | None) -> tuple[str, str, str, str]:
    if call is None:
        return "none", "-", "-", "-"
    text = f"#{call['sequence']} {call['collective']}"
    if call["collective"] != "barrier":
        text += f" of {call['count']} {call['type']}"
    if call["group"]:
        text += f" in {call['group_text'] or call['group']}"
    waited = "-"
    if call["waited_for"] is not None:
        waited = f"rank {call['waited_for']}, {call['waited_ns'] / 1e6:.1f} ms"
    when = time.strftime("%H:%M:%S", time.localtime(call["ended_unix_ns"] / 1e9))
    return text, call["status"], waited, f"{when}.{call['ended_unix_ns'] // 10**6 % 1000:03d}"
