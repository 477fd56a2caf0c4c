"""The CSV tables of a rank's profile: columns, line ends, tab behind times are the Ascend profiler's."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from .communication import microseconds
from .model import Allocation, Operator, RankData, Step
from .parts import Kernel, issues_communication, kernels_of, parts_of

STEP_COLUMNS = (
    "Computing",
    "Communication(Not Overlapped)",
    "Overlapped",
    "Communication",
    "Free",
    "Stage",
    "Bubble",
    "Communication(Not Overlapped and Exclude Receive)",
    "Preparing",
)
_KERNEL_COLUMNS = (
    "Step Id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats,Context ID"
).split(",")
_OPERATOR_COLUMNS = (
    "Name,Input Shapes,Call Stack,Host Self Duration(us),Host Total Duration(us),Device Self Duration(us),"
    "Device Total Duration(us),Device Self Duration With AICore(us),Device Total Duration With AICore(us)"
).split(",")
_STATISTIC_COLUMNS = (
    "OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)"
).split(",")
_API_COLUMNS = "Level,API Name,Time(us),Count,Avg(us),Min(us),Max(us),Variance".split(",")
_MEMORY_COLUMNS = (
    "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type"
).split(",")
_OPERATOR_MEMORY_COLUMNS = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),"
    "Active Duration(us),Allocation Total Allocated(MB),Allocation Total Reserved(MB),"
    "Allocation Total Active(MB),Release Total Allocated(MB),Release Total Reserved(MB),"
    "Release Total Active(MB),Stream Ptr,Device Type"
).split(",")
_NONE = 4294967295  # what the Ascend profiler writes for "no such number"


def text_of(columns: Sequence[str], rows: Iterable[Sequence[Any]], line_end: str) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=line_end)
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def step_trace_time(data: RankData) -> str:
    rows = []
    for step in data.steps:
        figures = parts_of(step).nanoseconds()
        rows.append([step.number, *(microseconds(figures[column]) for column in STEP_COLUMNS)])
    return text_of(("Step", *STEP_COLUMNS), rows, "\r\n")


def shapes(operator: Operator) -> str:
    """Of the inputs, in the quotes that the Ascend profiler adds; "" where none were recorded."""
    if operator.shapes is None:
        operator.shapes = _shapes(operator)
    return operator.shapes


def _shapes(operator: Operator) -> str:
    dims = operator.arguments.get("Input Dims")
    if not dims:
        return ""
    parts = []
    for shape in dims:
        tensors = shape if shape and isinstance(shape[0], list) else [shape]
        parts += [",".join(str(size) for size in tensor) for tensor in tensors]
    return '"' + ";".join(parts) + '"'


def kernel_details(data: RankData) -> str:
    """One row per kernel and per call, by start. Wait Time: how long its thread had run no operator."""
    threads = stream_numbers(data)
    rows: list[tuple[int, list[Any]]] = []
    task = 0
    for step in data.steps:
        last: dict[int, int] = {}
        for kernel in kernels_of(step):
            task += 1
            operator = step.operators[kernel.operator]
            gap = max(0, kernel.start - last.get(kernel.tid, min(kernel.start, step.begin)))
            last[kernel.tid] = max(last.get(kernel.tid, 0), kernel.end)
            types = ";".join(str(t) for t in operator.arguments.get("Input type", ())) or "N/A"
            place = (step.number, _NONE, task, threads[kernel.tid])
            rows.append((kernel.start, _kernel_row(place, kernel, gap, shapes(operator) or "N/A", types)))
        for call in step.own_calls():
            task += 1
            hash_text = data.groups[call.group].hash if call.group in data.groups else ""
            times = (microseconds(call.start) + "\t", microseconds(call.end - call.start))
            rows.append((call.start, [
                step.number, _NONE, task, len(threads), call.name(hash_text), f"hcom_{call.kind}_", "N/A",
                "HCCL", *times, microseconds(max(0, call.start - call.issued)), 0, 0, "NO", *["N/A"] * 7,
            ]))  # fmt: skip
    rows.sort(key=lambda row: row[0])
    return text_of(_KERNEL_COLUMNS, (row for _, row in rows), "\r\n")


def _kernel_row(place: tuple[int, ...], kernel: Kernel, gap: int, shape: str, types: str) -> list[Any]:
    times = (microseconds(kernel.start) + "\t", microseconds(kernel.end - kernel.start), microseconds(gap))
    return [
        *place, kernel.name, kernel.name.removeprefix("aten::"), "dynamic", "CPU", *times, 1, 0, "NO", shape,
        types, *["N/A"] * 5,
    ]  # fmt: skip


def stream_numbers(data: RankData) -> dict[int, int]:
    """Threads that ran operators, numbered from 0 in the order of their first one."""
    numbers: dict[int, int] = {}
    for step in data.steps:
        for operator in step.operators:
            numbers.setdefault(operator.tid, len(numbers))
    return numbers


def self_times(step: Step) -> list[int]:
    """Of each operator: its length less that of the operators right below it."""
    own = [operator.end - operator.start for operator in step.operators]
    for operator in step.operators:
        if operator.parent >= 0:
            own[operator.parent] -= operator.end - operator.start
    return [max(0, value) for value in own]


def call_stack(
    operator: Operator, functions: dict[int, list[Operator]], indices: dict[int, list[int]]
) -> str:
    """Python's frames around an operator, innermost first."""
    import bisect

    candidates = functions.get(operator.tid)
    if not candidates:
        return ""
    at = bisect.bisect_right(indices[operator.tid], operator.start) - 1
    frames: list[str] = []
    # The last function that began before; from there outwards by what holds the operator.
    while at >= 0 and len(frames) < 64:
        function = candidates[at]
        if function.end >= operator.end:
            frames.append(function.name)
        at = _outer(candidates, at)
    return ";\n".join(frames)


def _outer(functions: list[Operator], at: int) -> int:
    """The parent among the functions of one thread, as `by_thread` renumbered it."""
    return functions[at].parent


def by_thread(functions: list[Operator]) -> tuple[dict[int, list[Operator]], dict[int, list[int]]]:
    """Python functions per thread by start, parents as indices within the thread; and their starts."""
    lists: dict[int, list[Operator]] = {}
    place: dict[int, int] = {}
    for index, function in enumerate(functions):
        own = lists.setdefault(function.tid, [])
        place[index] = len(own)
        parent = place.get(function.parent, -1)
        own.append(Operator(function.name, function.start, function.end, function.tid, {}, parent))
    return lists, {tid: [f.start for f in own] for tid, own in lists.items()}


def operator_details(data: RankData) -> str:
    rows = []
    for step in data.steps:
        own = self_times(step)
        lists, starts = by_thread(step.functions)
        leaves = leaf_times(step)
        for index, operator in enumerate(step.operators):
            total = operator.end - operator.start
            device = 0 if issues_communication(operator.name) else leaves[index]
            leaf = total if device == total else 0
            rows.append([
                operator.name, shapes(operator), call_stack(operator, lists, starts),
                microseconds(own[index]), microseconds(total), microseconds(leaf), microseconds(device), 0, 0,
            ])  # fmt: skip
    return text_of(_OPERATOR_COLUMNS, rows, "\n")


def leaf_times(step: Step) -> list[int]:
    """Of each operator: the time in it that operators spent which call no other."""
    has_child = [False] * len(step.operators)
    for operator in step.operators:
        if operator.parent >= 0:
            has_child[operator.parent] = True
    leaves = [0] * len(step.operators)
    for index in range(len(step.operators) - 1, -1, -1):  # children stand behind their parents
        operator = step.operators[index]
        if not has_child[index] and not issues_communication(operator.name):
            leaves[index] = operator.end - operator.start
        if operator.parent >= 0:
            leaves[operator.parent] += leaves[index]
    return leaves


def op_statistic(data: RankData) -> str:
    """Kernels by type, the most expensive first."""
    times: dict[str, list[int]] = {}
    for step in data.steps:
        for kernel in kernels_of(step):
            times.setdefault(kernel.name.removeprefix("aten::"), []).append(kernel.end - kernel.start)
    total = sum(sum(values) for values in times.values())
    rows = [
        [
            name, "CPU", len(values), microseconds(sum(values)), microseconds(min(values)),
            f"{sum(values) / len(values) / 1000:.3f}", microseconds(max(values)),
            f"{100 * sum(values) / total:.3f}" if total else 0,
        ]
        for name, values in sorted(times.items(), key=lambda item: -sum(item[1]))
    ]  # fmt: skip
    return text_of(_STATISTIC_COLUMNS, rows, "\n")


def api_statistic(data: RankData) -> str:
    """What the host called: operators (level node) and collectives (level hccl), by their own time."""
    times: dict[tuple[str, str], list[int]] = {}
    for step in data.steps:
        for operator, own in zip(step.operators, self_times(step), strict=True):
            level = "hccl" if issues_communication(operator.name) else "node"
            times.setdefault((level, operator.name), []).append(own)
    rows = []
    for (level, name), values in sorted(times.items(), key=lambda item: -sum(item[1])):
        mean = sum(values) / len(values) / 1000
        variance = statistics.pvariance([value / 1000 for value in values])
        rows.append([
            level, name, microseconds(sum(values)), len(values), f"{mean:.3f}", microseconds(min(values)),
            microseconds(max(values)), f"{variance:.3f}",
        ])  # fmt: skip
    return text_of(_API_COLUMNS, rows, "\n")


def _mib(size: int) -> str:
    return f"{size / 2**20:.6f}"


def memory_record(data: RankData) -> str:
    """The allocator's memory whenever it changed (PTA), and the whole process at each step's ends (APP)."""
    rows: list[tuple[int, list[Any]]] = []
    for step in data.steps:
        for change in step.allocations:
            total = _mib(change.allocated)
            rows.append(
                (change.time, ["PTA", microseconds(change.time) + "\t", total, total, total, 0, "CPU"])
            )
        for time, size in step.resident:
            rows.append((time, ["APP", microseconds(time) + "\t", "", _mib(size), "", "", "CPU"]))
    rows.sort(key=lambda row: row[0])
    return text_of(_MEMORY_COLUMNS, (row for _, row in rows), "\r\n")


def blocks(step: Step) -> list[tuple[Allocation | None, Allocation | None]]:
    """Blocks of memory as (allocated, released) by address, in order; None: outside of the step."""
    live: dict[int, int] = {}
    found: list[tuple[Allocation | None, Allocation | None]] = []
    for change in step.allocations:
        if change.bytes > 0:
            live[change.address] = len(found)
            found.append((change, None))
        elif change.address in live:
            index = live.pop(change.address)
            found[index] = (found[index][0], change)
        else:
            found.append((None, change))
    return found


def owner(step: Step, change: Allocation, starts: dict[int, list[int]], places: dict[int, list[int]]) -> str:
    """The innermost operator at that time on that thread; "" outside of all."""
    import bisect

    at = bisect.bisect_right(starts.get(change.tid, []), change.time) - 1
    index = places[change.tid][at] if at >= 0 else -1
    while index >= 0 and step.operators[index].end < change.time:
        index = step.operators[index].parent
    return step.operators[index].name if index >= 0 else ""


def places_of(step: Step) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Per thread the operators' starts and their places, both in order of start."""
    starts: dict[int, list[int]] = {}
    places: dict[int, list[int]] = {}
    for index, operator in enumerate(step.operators):
        starts.setdefault(operator.tid, []).append(operator.start)
        places.setdefault(operator.tid, []).append(index)
    return starts, places


def operator_memory(data: RankData) -> str:
    rows = []
    for step in data.steps:
        starts, places = places_of(step)
        for made, freed in blocks(step):
            known = made or freed
            assert known is not None
            ends = [_mib(change.allocated) if change else "" for change in (made, freed)]
            time = [microseconds(change.time) + "\t" if change else "" for change in (made, freed)]
            length = microseconds(freed.time - made.time) if made and freed else ""
            rows.append([
                owner(step, known, starts, places) or "N/A", f"{abs(known.bytes) / 1024:.6f}", *time,
                time[1], length, length, *[ends[0]] * 3, *[ends[1]] * 3, 0, "CPU",
            ])  # fmt: skip
    return text_of(_OPERATOR_MEMORY_COLUMNS, rows, "\r\n")
