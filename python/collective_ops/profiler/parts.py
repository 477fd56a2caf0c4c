"""Where a step's time went, as docs/profiling.md defines it; step = computing + exposed + free, exactly."""

from __future__ import annotations

from dataclasses import dataclass

from .intervals import Interval, clip, length, subtract, union
from .model import Operator, Step

# Operators that issue a collective or wait for one: no computing, however long they take.
_COMMUNICATION = ("c10d::", "record_param_comms", "_c10d_functional::")


def issues_communication(name: str) -> bool:
    return name.startswith(_COMMUNICATION)


@dataclass(frozen=True)
class Kernel:
    """A piece of work of one thread: an outermost operator, cut where it issues communication."""

    name: str
    start: int
    end: int
    tid: int
    operator: int  # index into Step.operators


@dataclass(frozen=True)
class Parts:
    """Of one step, as disjoint intervals inside its window."""

    begin: int
    end: int
    computing: list[Interval]
    communication: list[Interval]
    exposed: list[Interval]
    free: list[Interval]
    bubble_ns: int

    def nanoseconds(self) -> dict[str, int]:
        """By the names of step_trace_time.csv's columns."""
        communication, exposed = length(self.communication), length(self.exposed)
        first = min([begin for begin, _ in self.computing + self.communication], default=self.begin)
        return {
            "Computing": length(self.computing),
            "Communication(Not Overlapped)": exposed,
            "Overlapped": communication - exposed,
            "Communication": communication,
            "Free": length(self.free),
            "Stage": self.end - self.begin - self.bubble_ns,
            "Bubble": self.bubble_ns,
            "Communication(Not Overlapped and Exclude Receive)": max(exposed - self.bubble_ns, 0),
            "Preparing": first - self.begin,
        }


def kernels_of(step: Step) -> list[Kernel]:
    """The step's kernels in the order of their start, whole even where they pass the step's end."""
    if step.kernels is None:
        step.kernels = _kernels_of(step)
    return step.kernels


def _kernels_of(step: Step) -> list[Kernel]:
    if step.activity:
        return _kernels_of_activity(step)
    cuts: dict[int, list[Interval]] = {}
    for operator in step.operators:
        if issues_communication(operator.name):
            cuts.setdefault(operator.tid, []).append((operator.start, operator.end))
    kernels = []
    merged = {tid: union(intervals) for tid, intervals in cuts.items()}
    for index, operator in enumerate(step.operators):
        if operator.parent >= 0 or issues_communication(operator.name):
            continue
        whole = [(operator.start, operator.end)]
        inside = clip(merged.get(operator.tid, ()), operator.start, operator.end)
        for begin, end in subtract(whole, inside) if inside else whole:
            kernels.append(Kernel(kernel_name(operator), begin, end, operator.tid, index))
    return sorted(kernels, key=lambda kernel: (kernel.start, kernel.end))


def _kernels_of_activity(step: Step) -> list[Kernel]:
    """Of outermost operators without names."""
    threads = {row[0] for row in step.activity}
    kernels = []
    for thread in threads:
        rows = [row for row in step.activity if row[0] == thread]
        busy = union((begin, end) for _, begin, end, kind in rows if kind == 0)
        cuts = union((begin, end) for _, begin, end, kind in rows if kind == 1)
        kernels += [Kernel("", begin, end, thread, -1) for begin, end in subtract(busy, cuts)]
    return sorted(kernels, key=lambda kernel: (kernel.start, kernel.end))


def kernel_name(operator: Operator) -> str:
    return operator.name.removeprefix("autograd::engine::evaluate_function: ")


def parts_of(step: Step) -> Parts:
    computing = union(clip(((k.start, k.end) for k in kernels_of(step)), step.begin, step.end))
    communication = union(clip(((c.start, c.end) for c in step.calls), step.begin, step.end))
    exposed = subtract(communication, computing)
    receives = union(
        clip(((c.start, c.end) for c in step.calls if c.kind == "receive"), step.begin, step.end)
    )
    busy = union(computing + communication)
    free = subtract([(step.begin, step.end)] if step.end > step.begin else [], busy)
    return Parts(step.begin, step.end, computing, communication, exposed, free, length(receives))
