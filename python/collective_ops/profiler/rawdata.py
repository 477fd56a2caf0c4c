"""The raw data of one rank's profile, in its folder FRAMEWORK: per recorded step the trace of torch.profiler,
and the calls of our recorder as they came. Written step by step: what a job left when it died can be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import kineto, runs
from .model import Call, Group, Peer, RankData

WORLD_OF_OTHERS = Group("torch%default_group", "default_group")


def trace_file(directory: Path, step: int) -> Path:
    return directory / runs.RAW / f"step_{step}.pt.trace.json"


def write_flush(directory: Path, name: str, record: dict[str, Any], calls: list[Call]) -> int:
    """One file `calls_<name>.json`; returns its bytes. `record` is what else is known of the step."""
    rows = [
        [
            *(
                call.kind,
                call.group,
                call.sequence,
                call.start,
                call.end,
                call.issued,
                call.bytes,
                call.count,
            ),
            *(call.dtype, call.algorithm, call.path, call.status, call.waited, call.longest_wait),
            [[peer.rank, peer.waited, peer.read, peer.written, peer.moved] for peer in call.peers],
        ]
        for call in calls
    ]
    text = json.dumps({**record, "calls": rows}, separators=(",", ":"))
    runs.write_whole(directory / runs.RAW / f"calls_{name}.json", text)
    return len(text)


def _call(row: list[Any]) -> Call:
    *fields, peers = row
    return Call(*fields, [Peer(*peer) for peer in peers])


def read(directory: Path) -> RankData:
    """All that was recorded; a step that cannot be read is a note.

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
        steps=[],
        groups={},
    )
    calls: list[Call] = []
    resident: dict[int, list[tuple[int, int]]] = {}
    for path in sorted((directory / runs.RAW).glob("calls_*.json")):
        try:
            content = json.loads(path.read_bytes())
            calls += [_call(row) for row in content["calls"]]
            for group in content.get("groups", ()):
                data.groups[group["id"]] = Group(group["id"], group["name"], tuple(group["ranks"]))
            if "step" in content:
                resident[int(content["step"])] = [tuple(pair) for pair in content.get("resident", ())]
        except (OSError, ValueError, KeyError, TypeError) as error:
            data.notes.append(f"{path.name} cannot be read: {error}")
    for number in sorted(resident):
        try:
            step = kineto.read_step(
                trace_file(directory, number), number, WORLD_OF_OTHERS, bool(mark.get("recorder"))
            )
        except ValueError as error:
            data.notes.append(str(error))
            continue
        step.resident = tuple(resident[number])
        data.steps.append(step)
    _give_calls(data, calls)
    if not data.steps:
        raise ValueError(f"{directory}: no step can be used. {' '.join(data.notes)}".rstrip())
    return data


def _give_calls(data: RankData, calls: list[Call]) -> None:
    """Each step gets the calls that overlap it."""
    calls.sort(key=lambda call: (call.start, call.end))
    for step in data.steps:
        step.calls += [call for call in calls if call.start < step.end and call.end > step.begin]
        step.calls.sort(key=lambda call: (call.start, call.end))
    if any(call.group == WORLD_OF_OTHERS.id for step in data.steps for call in step.calls):
        ranks = tuple(range(data.world_size))
        data.groups[WORLD_OF_OTHERS.id] = Group(WORLD_OF_OTHERS.id, WORLD_OF_OTHERS.name, ranks)
