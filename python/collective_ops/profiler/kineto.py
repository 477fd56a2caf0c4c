"""One recorded step's trace, as torch.profiler exports it, into a Step. Times are decimal text until they are
int nanoseconds, so nothing is rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .model import Allocation, Call, Group, Operator, Step
from .parts import issues_communication

_STEP_MARK = "ProfilerStep#"
# Ranges that backends of torch.distributed open around a collective: Gloo's, and ours.
_RANGES = {
    "all_reduce": "allReduce",
    "all_gather": "allGather",
    "reduce_scatter": "reduceScatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all": "alltoall",
    "barrier": "barrier",
    "send": "send",
    "recv": "receive",
}
_BYTES = {"float": 4, "double": 8, "int": 4, "long int": 8, "long": 8, "c10::Half": 2, "c10::BFloat16": 2}
_BYTES |= {"short int": 2, "short": 2, "unsigned char": 1, "signed char": 1, "bool": 1}


def nanoseconds(text: str | int | float) -> int:
    """Of microseconds as decimal text, exactly; more than three decimals are cut."""
    whole, _, fraction = str(text).partition(".")
    if "e" in whole or "e" in fraction or not whole.lstrip("-").isdigit():
        return round(float(text) * 1000)
    value = abs(int(whole)) * 1000 + int((fraction + "000")[:3])
    return -value if whole.startswith("-") else value


def read_step(path: Path, number: int, group: Group, recorded: bool) -> Step:
    """`group` takes the calls of backends that do not name theirs. `recorded`: our own backend's calls come
    from its recorder, and its ranges are left aside.

    Raises ValueError: no such file, or its text is no trace with this step's mark.
    """
    try:
        trace = json.loads(path.read_bytes(), parse_float=str, strict=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: the trace of step {number} cannot be read: {error}") from None
    base = int(trace.get("baseTimeNanoseconds", 0))
    step = Step(number, 0, 0)
    for event in trace.get("traceEvents", ()):
        try:
            _take(event, base, step)
        except (KeyError, TypeError, ValueError):
            step.damaged += 1
    marks = [mark for mark in step.annotations if mark.name == f"{_STEP_MARK}{number}"]
    if not marks:
        raise ValueError(f"{path}: there is no {_STEP_MARK}{number} in the trace")
    step.begin, step.end = marks[0].start, marks[0].end
    _nest(step.operators)
    _nest(step.functions)
    step.allocations.sort(key=lambda change: change.time)
    step.calls = _ranges(step, group, recorded)
    return step


def _take(event: dict[str, Any], base: int, step: Step) -> None:
    phase, category = event.get("ph"), event.get("cat")
    if phase == "X" and category in ("cpu_op", "user_annotation", "python_function"):
        start = base + nanoseconds(event["ts"])
        end = start + max(0, nanoseconds(event.get("dur", 0)))
        made = Operator(str(event["name"]), start, end, int(event["tid"]), event.get("args") or {})
        lists = {"cpu_op": step.operators, "user_annotation": step.annotations}
        lists.get(category, step.functions).append(made)
    elif phase == "i" and event.get("name") == "[memory]":
        args = event["args"]
        step.allocations.append(
            Allocation(
                base + nanoseconds(event["ts"]),
                int(event["tid"]),
                int(args["Bytes"]),
                int(args["Addr"]),
                int(args.get("Total Allocated", 0)),
                int(args.get("Total Reserved", 0)),
            )
        )


def _nest(operators: list[Operator]) -> None:
    """Sorts by start and sets each one's parent: the innermost on its thread that holds all of it."""
    operators.sort(key=lambda operator: (operator.start, -operator.end))
    open_by_thread: dict[int, list[int]] = {}
    for index, operator in enumerate(operators):
        stack = open_by_thread.setdefault(operator.tid, [])
        while stack and operators[stack[-1]].end < operator.end:
            stack.pop()
        while stack and operators[stack[-1]].end <= operator.start < operator.end:
            stack.pop()
        operator.parent = stack[-1] if stack else -1
        stack.append(index)


def _bytes_of(arguments: dict[str, Any]) -> int:
    """Of the first input, as a range carries it; 0 where it cannot be told."""
    dims, types = arguments.get("Input Dims") or [], arguments.get("Input type") or []
    if not dims or not types or not isinstance(dims[0], list):
        return 0
    tensors = dims[0] if dims[0] and isinstance(dims[0][0], list) else [dims[0]]
    total = 0
    for shape in tensors:
        count = 1
        for size in shape:
            count *= int(size)
        total += count
    return total * _BYTES.get(str(types[0]), 0)


def _ranges(step: Step, group: Group, recorded: bool) -> list[Call]:
    """The calls that only PyTorch saw. Who waited is not in them; they are numbered by kind and order."""
    counts: dict[str, int] = {}
    calls = []
    for mark in sorted(step.annotations, key=lambda mark: mark.start):
        backend, _, title = mark.name.partition(":")
        kind = _RANGES.get(title)
        if kind is None or (recorded and backend == "collective_ops"):
            continue
        counts[kind] = counts.get(kind, 0) + 1
        sequence = step.number * 100_000 + counts[kind]
        size = _bytes_of(mark.arguments)
        calls.append(
            Call(kind, group.id, sequence, mark.start, mark.end, mark.start, size, algorithm=backend)
        )
    return calls


def communication_operators(step: Step) -> list[Operator]:
    """The outermost operators that issue collectives."""
    return [
        operator
        for operator in step.operators
        if issues_communication(operator.name)
        and not (operator.parent >= 0 and issues_communication(step.operators[operator.parent].name))
    ]
