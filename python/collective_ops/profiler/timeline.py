"""trace_view.json: the lanes that users of Ascend profiles know, for Perfetto and MindStudio.

A bare list of events. `ts` and `dur` are numbers with three decimals (nanoseconds), counted from the base
that the first event names: microseconds since 1970 have more digits than a double keeps. Ids are small.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .communication import TASKS, microseconds, tasks_of
from .model import Call, Operator, RankData, Step
from .parts import issues_communication, kernels_of, parts_of
from .tables import by_thread, call_stack, shapes, stream_numbers

# Process: its place in the view, and its label.
_LANES = {
    "Python": (0, "CPU"),
    "Ascend Hardware": (13, "NPU"),
    "HCCL": (15, "NPU"),
    "Overlap Analysis": (23, "NPU"),
}
_OVERLAP = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
_MEMORY = (19, "NPU MEM")


_PROCESS_IDS = {lane: number for number, lane in enumerate((*_LANES, _MEMORY[1]), 1)}


def process_id(lane: str) -> int:
    return _PROCESS_IDS[lane]


def base_of(data: RankData) -> int:
    """The whole second before the first step."""
    return data.steps[0].begin // 10**9 * 10**9


# One for all events: json.dumps with options makes a new one for each.
_json = json.JSONEncoder(ensure_ascii=False, default=str, separators=(",", ":")).encode


class _Writer:
    def __init__(self, base: int) -> None:
        self.base = base
        self.lines: list[str] = []

    def meta(self, lane: str, title: str, tid: int, **arguments: Any) -> None:
        event = {"ph": "M", "name": title, "pid": process_id(lane), "tid": tid, "args": arguments}
        self.lines.append(json.dumps(event, ensure_ascii=False))

    def complete(
        self,
        lane: str,
        tid: int,
        name: str,
        start: int,
        end: int,
        arguments: dict[str, Any],
        category: str = "",
    ) -> None:
        cat = f'"cat":"{category}",' if category else ""
        self.lines.append(
            f'{{"ph":"X","name":{_json(name)},{cat}'
            f'"pid":{process_id(lane)},"tid":{tid},'
            f'"ts":{microseconds(start - self.base)},"dur":{microseconds(end - start)},'
            f'"args":{_json(arguments)}}}'
        )

    def flow(self, phase: str, lane: str, tid: int, time: int, number: int) -> None:
        bind = ',"bp":"e"' if phase == "f" else ""
        self.lines.append(
            f'{{"ph":"{phase}"{bind},"cat":"async_npu","name":"torch_to_npu","id":{number},'
            f'"pid":{process_id(lane)},"tid":{tid},"ts":{microseconds(time - self.base)}}}'
        )

    def counter(self, time: int, values: dict[str, float]) -> None:
        self.lines.append(
            f'{{"ph":"C","name":"{_MEMORY[1]}","pid":{process_id(_MEMORY[1])},"tid":0,'
            f'"ts":{microseconds(time - self.base)},"args":{json.dumps(values)}}}'
        )


def trace_view(data: RankData) -> str:
    out = _Writer(base_of(data))
    _names(out, data)
    groups = {group: number for number, group in enumerate(data.groups)}
    numbers = iter(range(1, 2**31))
    drawn: set[int] = set()
    for step in data.steps:
        _host(out, data, step)
        if data.level >= 1:
            _hardware(out, data, step, numbers)
        _communication(out, data, step, groups, drawn)
        _overlap(out, step)
        if data.on("with_memory"):
            for change in step.allocations:
                out.counter(change.time, {"KB": change.allocated / 1024})
    return "[\n" + ",\n".join(out.lines) + "\n]\n"


def _names(out: _Writer, data: RankData) -> None:
    out.lines.append(
        json.dumps(
            {
                "ph": "M",
                "name": "baseTimeNanoseconds",
                "pid": process_id("Python"),
                "tid": 0,
                "args": {"value": out.base, "rank": data.rank},
            }
        )
    )
    lanes = {**_LANES, **({_MEMORY[1]: (_MEMORY[0], "NPU")} if data.on("with_memory") else {})}
    for lane, (place, label) in lanes.items():
        out.meta(lane, "process_name", 0, name=lane)
        out.meta(lane, "process_labels", 0, labels=label if label == "CPU" else f"{label} {data.rank}")
        out.meta(lane, "process_sort_index", 0, sort_index=place)
    for tid, number in stream_numbers(data).items():
        out.meta("Python", "thread_name", tid, name=f"Thread {tid}")
        if data.level >= 1:
            out.meta("Ascend Hardware", "thread_name", number, name=f"Stream {number}")
    for number, group in enumerate(data.groups.values()):
        out.meta("HCCL", "thread_name", _group_tid(number), name=f"Group {group.name} Communication")
    if data.level >= 2:
        for number, group in enumerate(data.groups.values()):
            for peer in range(max(len(group.ranks), 1)):
                tid = _group_tid(number) + 1 + peer
                out.meta("HCCL", "thread_name", tid, name=f"Plane {peer} of group {group.name}")
    for number, name in enumerate(_OVERLAP):
        out.meta("Overlap Analysis", "thread_name", number, name=name)


def _group_tid(number: int) -> int:
    return number * 100_000


def _host(out: _Writer, data: RankData, step: Step) -> None:
    """The step's mark; with the host's operators, and Python's functions, where these were asked for."""
    main = next((mark.tid for mark in step.annotations if mark.start == step.begin), data.pid)
    out.complete("Python", main, f"ProfilerStep#{step.number}", step.begin, step.end, {}, "user_annotation")
    if not data.on("with_cpu"):
        return
    lists, starts = by_thread(step.functions)
    for operator in step.operators:
        arguments: dict[str, Any] = {}
        if "Sequence number" in operator.arguments:
            arguments["Sequence number"] = operator.arguments["Sequence number"]
        if "Input Dims" in operator.arguments:
            arguments["Input Dims"] = shapes(operator).strip('"')
            arguments["Input type"] = ";".join(str(t) for t in operator.arguments.get("Input type", ()))
        if lists:
            arguments["Call stack"] = call_stack(operator, lists, starts).replace(";\n", ";\r\n")
        out.complete("Python", operator.tid, operator.name, operator.start, operator.end, arguments, "cpu_op")
    for function in step.functions:
        _function(out, function)


def _function(out: _Writer, function: Operator) -> None:
    arguments = {name: function.arguments.get(name) for name in ("Python id", "Python parent id")}
    out.complete(
        "Python", function.tid, function.name, function.start, function.end, arguments, "python_function"
    )


def _hardware(out: _Writer, data: RankData, step: Step, numbers: Iterator[int]) -> None:
    """Kernels on streams; from the operator that launched each an arrow, within its thread."""
    streams = stream_numbers(data)
    for kernel in kernels_of(step):
        number = next(numbers)
        operator = step.operators[kernel.operator]
        arguments: dict[str, Any] = {"Task Type": "CPU", "Task Id": number, "connection_id": number}
        if data.on("record_shapes") or data.level >= 2:
            arguments["Input Dims"] = shapes(operator)[1:-1]
        stream = streams[kernel.tid]
        out.complete("Ascend Hardware", stream, kernel.name, kernel.start, kernel.end, arguments)
        if data.on("with_cpu") and not issues_communication(operator.name):
            out.flow("s", "Python", kernel.tid, kernel.start, number)
            out.flow("f", "Ascend Hardware", stream, kernel.start, number)


def _communication(out: _Writer, data: RankData, step: Step, groups: dict[str, int], drawn: set[int]) -> None:
    """Calls that overlap the step, whole; at level2 for each peer its waiting and moving inside of them."""
    for call in step.calls:
        if id(call) in drawn:  # one that runs on into the next step
            continue
        drawn.add(id(call))
        tid = _group_tid(groups.get(call.group, len(groups)))
        hash_text = data.groups[call.group].hash if call.group in data.groups else ""
        arguments = {
            "connection_id": call.sequence,
            "group": call.group,
            "algorithm": call.algorithm,
            "path": call.path,
            "data type": call.dtype,
            "count": call.count,
            "size(Byte)": call.bytes,
            "status": call.status,
        }
        if call.waited is not None:
            arguments["waited(us)"] = microseconds(call.waited)
        if call.issued and call.issued < call.start:
            arguments["queued(us)"] = microseconds(call.start - call.issued)
        out.complete("HCCL", tid, call.name(hash_text), call.start, call.end, arguments)
        if data.level >= 2:
            _planes(out, data, call, tid)


def _planes(out: _Writer, data: RankData, call: Call, tid: int) -> None:
    """One lane per peer with what was done with it; the rank's own has what stayed in its memory, and what it
    did with several peers at once."""
    group = data.groups.get(call.group)
    own = group.local(data.rank) if group else data.rank
    for task in tasks_of(call):
        peer = task.peer if task.peer >= 0 else data.rank
        local = group.local(peer) if group else peer
        arguments = {
            "src rank": own,
            "dst rank": local if task.peer >= 0 else "several",
            "transport type": data.transport(peer),
            "size(Byte)": task.bytes,
            "task type": "Notify Wait" if task.kind == "wait" else TASKS[task.kind],
            "step": task.kind,
        }
        out.complete(
            "HCCL", tid + 1 + local, TASKS[task.kind], task.start, task.start + task.length, arguments
        )


def _overlap(out: _Writer, step: Step) -> None:
    parts = parts_of(step)
    lists = (parts.computing, parts.communication, parts.exposed, parts.free)
    for number, (name, intervals) in enumerate(zip(_OVERLAP, lists, strict=True)):
        for begin, end in intervals:
            out.complete("Overlap Analysis", number, name, begin, end, {"step": step.number})
