"""From a rank's raw data to the files that analysis tools open. A file appears whole or not at all; what
cannot be made is named in `collective_ops_notes.txt` and does not keep the others from being made."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from . import communication, rawdata, runs, tables, timeline
from .model import RankData

# File, the least level, the option that it needs besides ("" none), and what makes its text.
_TEXT: tuple[tuple[str, int, str, Callable[[RankData], str]], ...] = (
    ("step_trace_time.csv", 0, "", tables.step_trace_time),
    (
        "communication.json",
        0,
        "",
        lambda data: json.dumps(communication.by_step(data, communication.times_of_step), indent=None),
    ),
    (
        "communication_matrix.json",
        0,
        "",
        lambda data: json.dumps(communication.by_step(data, communication.matrix_of_step), indent=None),
    ),
    ("trace_view.json", 0, "", timeline.trace_view),
    ("kernel_details.csv", 1, "", tables.kernel_details),
    ("op_statistic.csv", 1, "", tables.op_statistic),
    ("operator_details.csv", 1, "with_cpu", tables.operator_details),
    ("api_statistic.csv", 1, "with_cpu", tables.api_statistic),
    ("memory_record.csv", 0, "with_memory", tables.memory_record),
    ("operator_memory.csv", 0, "with_memory", tables.operator_memory),
)


def write(directory: Path) -> list[str]:
    """Writes ASCEND_PROFILER_OUTPUT of a rank's profile anew; returns what could not be done.

    Raises ValueError: no profile of ours, or no step of it can be read. OSError: nothing can be written.
    """
    with _no_collection():
        return _write(directory)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A trace is a million objects without cycles; looking for cycles among them takes half of all time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _write(directory: Path) -> list[str]:
    data = rawdata.read(directory)
    output = directory / runs.OUTPUT
    output.mkdir(exist_ok=True)
    problems = list(data.notes)
    for step in data.steps:
        if step.damaged:
            problems.append(f"step {step.number}: {step.damaged} events of its trace cannot be used")
    if data.options.get("export_type") == "db":
        from . import database

        database.write(data, output, _json(directory / "profiler_metadata.json"))
    else:
        for name, level, option, make in _TEXT:
            if data.level < level or (option and not data.on(option)):
                continue
            try:
                runs.write_whole(output / name, make(data))
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                problems.append(f"{name} is not written: {type(error).__name__}: {error}")
    _refresh_groups(directory, data)
    if problems:
        runs.write_whole(directory / "collective_ops_notes.txt", "\n".join(problems) + "\n")
    runs.write_whole(directory / "analyse.done", "")
    return problems


def _json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _refresh_groups(directory: Path, data: RankData) -> None:
    """The metadata name every group that a call was made in."""
    path = directory / "profiler_metadata.json"
    metadata = _json(path)
    known = metadata.setdefault("parallel_group_info", {})
    missing = [group for group in data.groups.values() if group.id and group.id not in known]
    for group in missing:
        known[group.id] = {
            "group_name": group.name,
            "group_rank": group.local(data.rank),
            "global_ranks": list(group.ranks),
        }
    if missing:
        runs.write_whole(path, json.dumps(metadata, indent=1))
