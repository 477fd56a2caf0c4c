"""For tests of profiles: programs that record one, and what its files say when read without our code."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any


def record(
    directory: str, flags: Sequence[str] = (), steps: int = 6, work: Callable[[int], Any] | None = None
) -> dict[str, Any]:
    """Trains a small model for some steps in this process; returns what the profiler has to tell."""
    import argparse

    import collective_ops
    import torch
    from collective_ops.profiler import add_profile_args, profile

    args = add_profile_args(argparse.ArgumentParser()).parse_args(
        ["--profile", "--profile-save-path", directory, *flags]
    )
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        collective_ops.init_hccl()
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    with profile(args) as profiler:
        for step in range(steps):
            model(torch.ones(8, 16)).sum().backward()
            if work is not None:
                work(step)
            for parameter in model.parameters():
                if world > 1:
                    collective_ops.allreduce(parameter.grad)
            profiler.step()
    return {
        "directory": str(profiler.directory) if profiler.directory else None,
        "recorded": profiler.recorded,
        "failure": profiler.failure,
    }


def record_delayed(
    directory: str, flags: Sequence[str], steps: int, late_rank: int, seconds: float, how: str
) -> Any:
    """One rank comes late to the first call of every step, by a known time on its own clock: it computes
    ("compute"), or stands still before the call ("call")."""
    import torch

    matrix = torch.ones(512, 512)

    def work(_step: int) -> None:
        if int(os.environ["RANK"]) == late_rank:
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                if how == "compute":
                    torch.mm(matrix, matrix)
                else:
                    time.sleep(left)

    return record(directory, flags, steps, work)


def output(directory: str | Path, name: str) -> Path:
    return Path(directory) / "ASCEND_PROFILER_OUTPUT" / name


def names(directory: str | Path) -> set[str]:
    return {path.name for path in output(directory, "").iterdir()}


def table(directory: str | Path, name: str) -> list[dict[str, str]]:
    with output(directory, name).open(newline="") as file:
        return list(csv.DictReader(file))


def ns(text: str) -> int:
    value = Decimal(text.strip()) * 1000
    assert value == int(value), text
    return int(value)


def events(directory: str | Path) -> list[dict[str, Any]]:
    """Of trace_view.json, with numbers as the text they are."""
    return json.loads(output(directory, "trace_view.json").read_bytes(), parse_float=str)


def spans(directory: str | Path) -> list[tuple[str, str, int, int, dict[str, Any]]]:
    """(process, name, begin, end, args) of every X event, in ns from the file's base."""
    all_events = events(directory)
    process = {e["pid"]: e["args"]["name"] for e in all_events if e["name"] == "process_name"}
    return [
        (process[e["pid"]], e["name"], ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e["args"])
        for e in all_events
        if e["ph"] == "X"
    ]


def parts_by_sweep(directory: str | Path) -> dict[str, dict[str, int]]:
    """Each step's parts from the kernels and the calls of trace_view.json alone, moment by moment."""
    found = spans(directory)
    marks = {name.split("#")[1]: (a, b) for _, name, a, b, _ in found if name.startswith("ProfilerStep#")}
    compute = [(a, b) for lane, _, a, b, _ in found if lane == "Ascend Hardware"]
    calls = [(a, b) for lane, name, a, b, _ in found if lane == "HCCL" and name.startswith("hcom_")]
    result = {}
    for step, (begin, end) in marks.items():
        moments = sorted({begin, end} | {t for pair in compute + calls for t in pair if begin < t < end})
        sums = {"Computing": 0, "Communication(Not Overlapped)": 0, "Overlapped": 0, "Free": 0}
        for a, b in zip(moments, moments[1:], strict=False):
            computes = any(x <= a and b <= y for x, y in compute)
            communicates = any(x <= a and b <= y for x, y in calls)
            if computes:
                sums["Computing"] += b - a
            if computes and communicates:
                sums["Overlapped"] += b - a
            elif communicates:
                sums["Communication(Not Overlapped)"] += b - a
            elif not computes:
                sums["Free"] += b - a
        result[step] = {**sums, "step": end - begin}
    return result


def parts_by_overlap(directory: str | Path) -> dict[str, dict[str, int]]:
    """As parts_by_sweep, by one pass over begins and ends: for traces of thousands of kernels."""
    found = spans(directory)
    result = {}
    for _, name, begin, end, _ in found:
        if not name.startswith("ProfilerStep#"):
            continue
        changes = [(begin, 0, 0), (end, 0, 0)]
        for lane, title, a, b, _ in found:
            a, b = max(a, begin), min(b, end)
            which = 1 if lane == "Ascend Hardware" else 2 if title.startswith("hcom_") else 0
            if which and a < b and lane in ("Ascend Hardware", "HCCL"):
                changes += [(a, which, 1), (b, which, -1)]
        running = [0, 0, 0]
        sums = {"Computing": 0, "Communication(Not Overlapped)": 0, "Overlapped": 0, "Free": 0}
        changes.sort()
        for (moment, which, change), (following, _, _) in zip(changes, changes[1:], strict=False):
            running[which] += change
            length = following - moment
            sums["Computing"] += length if running[1] else 0
            sums["Overlapped"] += length if running[1] and running[2] else 0
            sums["Communication(Not Overlapped)"] += length if running[2] and not running[1] else 0
            sums["Free"] += length if not running[1] and not running[2] else 0
        result[name.split("#")[1]] = {**sums, "step": end - begin}
    return result
