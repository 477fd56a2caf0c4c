"""The raw data of one rank's profile, in its folder FRAMEWORK: per recorded step the trace of torch.profiler
(or when threads were in operators), and the entries of our recorder as they came. Written step by step: what
a job left when it died can be read. Files: step_<N>.pt.trace.json or activity_<N>.bin; calls_<N>.json, which
says what stands in calls_<N>.bin.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from . import clocks, entries, kineto, runs
from .model import Call, Group, RankData, Step

WORLD_OF_OTHERS = Group("torch%default_group", "default_group")
_ACTIVITY = struct.Struct("<qqqq")


def trace_file(directory: Path, step: int) -> Path:
    return directory / runs.RAW / f"step_{step}.pt.trace.json"


def activity_file(directory: Path, step: int) -> Path:
    return directory / runs.RAW / f"activity_{step}.bin"


def write_flush(directory: Path, name: str, record: dict[str, Any], chunks: list[entries.Chunk]) -> int:
    """What was recorded up to the end of a step; returns its bytes. `record` is what else is known of the
    step; `offset` in it leads from the monotonic clock to the real one."""
    folder = directory / runs.RAW
    chunks = [chunk for chunk in chunks if chunk.data]
    data = b"".join(chunk.data for chunk in chunks)
    if data:
        runs.write_whole(folder / f"calls_{name}.bin", data)
    about = [{**chunk.about, "bytes": len(chunk.data)} for chunk in chunks]
    text = json.dumps({**record, "files": about}, separators=(",", ":"))
    runs.write_whole(folder / f"calls_{name}.json", text)
    return len(text) + len(data)


def read(directory: Path, aligned: bool = True) -> RankData:
    """All that was recorded, on the clock that all hosts share where that is known (`aligned`); a step that
    cannot be read is a note.

    Raises ValueError: no profile of ours, or nothing of it can be used.
    """
    info = runs.info_of(directory)
    mark = info.get(runs.MARK)
    if not isinstance(mark, dict):
        raise ValueError(
            f"{directory}: no profile that collective-ops made (profiler_info has no mark of it)"
        )
    data = RankData(
        rank=int(info.get("rank_id", 0)),
        world_size=int(mark.get("world_size", 1)),
        local_world_size=int(mark.get("local_world_size", 0)),
        options=dict(mark.get("options", {})),
        pid=int(mark.get("pid", 0)),
        host=str(mark.get("host", "")),
        steps=[],
        groups={},
    )
    calls: list[Call] = []
    decoder = entries.Decoder()
    for path in _in_order(directory / runs.RAW):
        try:
            content = json.loads(path.read_bytes())
            if "step" in content:
                data.steps.append(_step(directory, content, bool(mark.get("recorder"))))
            calls += _calls_of(path, content, decoder)
        except ValueError as error:
            data.notes.append(str(error))
        except (OSError, LookupError, TypeError, AttributeError, struct.error) as error:
            data.notes.append(f"{path.name}: the calls cannot be read: {error}")
    data.groups = decoder.groups
    data.steps.sort(key=lambda step: step.number)
    _give_calls(data, calls)
    if not data.steps:
        raise ValueError(f"{directory}: {_why_nothing(directory, data)}")
    if aligned and isinstance(mark.get("clock"), dict):
        clocks.apply(data, clocks.Clock(**mark["clock"]))
    return data


def calls_of(directory: Path) -> list[Call]:
    """All calls that were recorded, on the host's own clock. Raises ValueError where none can be read."""
    decoder, calls = entries.Decoder(), []
    for path in _in_order(directory / runs.RAW):
        try:
            calls += _calls_of(path, json.loads(path.read_bytes()), decoder)
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            raise ValueError(f"{path}: {error}") from None
    return calls


def _why_nothing(directory: Path, data: RankData) -> str:
    if data.notes:
        return f"no step can be used. {' '.join(data.notes)}"
    start = data.options.get("step_start", "?")
    if not any((directory / runs.RAW).glob("*")):
        return (
            "there is nothing to parse: no step was recorded. The loop ended, or the rank died, before "
            f"step {start} (--profile-step-start) had ended"
        )
    return "there is nothing to parse: no step had ended when the recording did"


def _in_order(folder: Path) -> list[Path]:
    """The files of steps by their number, then what came after the last."""

    def place(path: Path) -> tuple[int, int]:
        found = re.fullmatch(r"calls_(\d+)\.json", path.name)
        return (0, int(found[1])) if found else (1, 0)

    return sorted(folder.glob("calls_*.json"), key=place)


def _calls_of(path: Path, content: dict[str, Any], decoder: entries.Decoder) -> list[Call]:
    files = content.get("files", [])
    if not files:
        return []
    try:
        data = path.with_suffix(".bin").read_bytes()
    except OSError as error:
        raise ValueError(f"{path.stem}.bin: the calls cannot be read: {error}") from None
    if len(data) != sum(int(file["bytes"]) for file in files):
        raise ValueError(f"{path.stem}.bin has {len(data)} bytes, which is not what {path.name} says")
    calls: list[Call] = []
    at = 0
    for file in files:
        size = int(file["bytes"])
        calls += decoder.calls(entries.Chunk(file, data[at : at + size]), int(content["offset"]))
        at += size
    return calls


def _step(directory: Path, content: dict[str, Any], recorded: bool) -> Step:
    """Raises ValueError: what was recorded of it cannot be read."""
    number = int(content["step"])
    if "window" in content:
        step = Step(number, *(int(time) for time in content["window"]))
        path, offset = activity_file(directory, number), int(content["offset"])
        try:
            rows = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path}: the activity of step {number} cannot be read: {error}") from None
        if len(rows) % _ACTIVITY.size:
            raise ValueError(f"{path}: the activity of step {number} is cut off")
        step.activity = [
            (thread, begin + offset, end + offset, kind)
            for thread, begin, end, kind in _ACTIVITY.iter_unpack(rows)
        ]
    else:
        step = kineto.read_step(trace_file(directory, number), number, WORLD_OF_OTHERS, recorded)
    step.resident = tuple((int(time), int(size)) for time, size in content.get("resident", ()))
    return step


def _give_calls(data: RankData, calls: list[Call]) -> None:
    """Each step gets the calls that overlap it."""
    calls.sort(key=lambda call: (call.start, call.end))
    for step in data.steps:
        step.calls += [call for call in calls if call.start < step.end and call.end > step.begin]
        step.calls.sort(key=lambda call: (call.start, call.end))
    used = {call.group for step in data.steps for call in step.calls}
    data.groups = {name: group for name, group in data.groups.items() if name in used}
    if WORLD_OF_OTHERS.id in used:
        ranks = tuple(range(data.world_size))
        data.groups[WORLD_OF_OTHERS.id] = Group(WORLD_OF_OTHERS.id, WORLD_OF_OTHERS.name, ranks)
