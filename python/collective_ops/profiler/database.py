"""The db export: ascend_pytorch_profiler_<rank>.db and analysis.db, with the tables of the Ascend profiler
that have content on CPUs. Each database is made beside its name and renamed when it is whole."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import communication, tables
from .model import Call, RankData, Step
from .parts import issues_communication, kernels_of, parts_of

_NONE = 4294967295
# Table: its columns, integers unless marked: t text, n any number, k integer and the key.
_KINDS = {"": "INTEGER", "t": "TEXT", "n": "NUMERIC", "k": "INTEGER PRIMARY KEY"}
_PROFILER: dict[str, str] = {
    "STRING_IDS": "id:k value:t",
    "TASK": (
        "startNs endNs deviceId connectionId globalTaskId globalPid taskType contextId streamId "
        "taskId modelId"
    ),
    "COMPUTE_TASK_INFO": (
        "name globalTaskId:k blockDim mixBlockDim taskType opType inputFormats inputDataTypes "
        "inputShapes outputFormats outputDataTypes outputShapes attrInfo"
    ),
    "COMMUNICATION_OP": (
        "opName startNs endNs connectionId groupName opId:k relay retry dataType algType count:n "
        "opType deviceId"
    ),
    "COMMUNICATION_TASK_INFO": (
        "name globalTaskId taskType planeId groupName notifyId rdmaType srcRank dstRank transportType "
        "size dataType linkType opId"
    ),
    "CANN_API": "startNs endNs type globalTid connectionId:k name",
    "PYTORCH_API": (
        "startNs:t endNs:t globalTid connectionId name sequenceNumber fwdThreadId inputDtypes "
        "inputShapes callchainId type"
    ),
    "CONNECTION_IDS": "id connectionId",
    "PYTORCH_CALLCHAINS": "id stack stackDepth",
    "STEP_TIME": "id startNs endNs",
    "RANK_DEVICE_MAP": "rankId deviceId",
    "HOST_INFO": "hostUid:t hostName:t",
    "SESSION_TIME_INFO": "startTimeNs endTimeNs",
    "NPU_INFO": "id name:t",
    "META_DATA": "name:t value:t",
    "ENUM_API_TYPE": "id:k name:t",
    "ENUM_HCCL_TRANSPORT_TYPE": "id:k name:t",
    "ENUM_HCCL_LINK_TYPE": "id:k name:t",
    "ENUM_HCCL_DATA_TYPE": "id:k name:t",
}
_MEMORY: dict[str, str] = {
    "MEMORY_RECORD": "component timestamp totalAllocated totalReserved totalActive streamPtr deviceId",
    "OP_MEMORY": (
        "name size allocationTime releaseTime activeReleaseTime duration activeDuration "
        "allocationTotalAllocated allocationTotalReserved allocationTotalActive releaseTotalAllocated "
        "releaseTotalReserved releaseTotalActive streamPtr deviceId"
    ),
    "NPU_MEM": "type ddr hbm timestampNs deviceId",
}
_ANALYSIS: dict[str, str] = {
    "CommAnalyzerTime": (
        "hccl_op_name:t group_name:t start_timestamp:n elapse_time:n transit_time:n wait_time:n "
        "synchronization_time:n idle_time:n step:t type:t"
    ),
    "CommAnalyzerBandwidth": (
        "hccl_op_name:t group_name:t transport_type:t transit_size:n transit_time:n bandwidth:n "
        "large_packet_ratio:n package_size:n count:n total_duration:n step:t type:t"
    ),
    "CommAnalyzerMatrix": (
        "hccl_op_name:t group_name:t src_rank:t dst_rank:t transport_type:t transit_size:n "
        "transit_time:n bandwidth:n step:t type:t op_name:t"
    ),
    "StepTraceTime": (
        "step:t computing:n communication_not_overlapped:n overlapped:n communication:n free:n "
        "stage:n bubble:n communication_not_overlapped_and_exclude_receive:n preparing:n"
    ),
}
_API_TYPES = {5000: "runtime", 5500: "hccl", 10000: "node", 15000: "model", 20000: "acl"}
_API_TYPES |= {50001: "op", 50002: "queue", 50003: "trace", 50004: "mstx"}
_TRANSPORTS = {0: "SDMA", 1: "RDMA", 2: "LOCAL", 65534: "N/A", 65535: "INVALID_TYPE"}
_LINKS = {0: "ON_CHIP", 1: "HCCS", 2: "PCIE", 3: "ROCE", 4: "SIO", 5: "HCCS_SW", 6: "STANDARD_ROCE"}
_LINKS |= {7: "RESERVED", 65534: "N/A", 65535: "INVALID_TYPE"}
_TYPES = "INT8 INT16 INT32 FP16 FP32 INT64 UINT64 UINT8 UINT16 UINT32 FP64 BFP16 INT128".split()  # by number
_TYPE_OF = {
    "int8": 0, "int16": 1, "int32": 2, "float16": 3, "float32": 4, "int64": 5, "uint64": 6, "uint8": 7,
    "uint16": 8, "uint32": 9, "float64": 10, "bfloat16": 11,
}  # fmt: skip
_LINK_OF = {"HCCS": (0, 1), "RDMA": (1, 3), "LOCAL": (2, 0)}  # transport, link


def write(data: RankData, output: Path, metadata: dict[str, Any]) -> None:
    """Both databases, in `output`. Raises sqlite3.Error, OSError."""
    name = f"ascend_pytorch_profiler_{data.rank}.db"
    _make(output / name, _Profiler(data, metadata).rows())
    _make(output / "analysis.db", _analysis(data))


def _make(path: Path, content: Iterable[tuple[str, str, list[Sequence[Any]]]]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    connection = sqlite3.connect(beside)
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        for table, columns, rows in content:
            parts = [column.partition(":") for column in columns.split()]
            typed = ", ".join(f"{name} {_KINDS[kind]}" for name, _, kind in parts)
            connection.execute(f"CREATE TABLE {table} ({typed})")
            if rows:
                marks = ",".join("?" * len(rows[0]))
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        connection.commit()
    finally:
        connection.close()
    os.replace(beside, path)


class _Profiler:
    """The rows of the profiler's own database."""

    def __init__(self, data: RankData, metadata: dict[str, Any]) -> None:
        self.data, self.metadata = data, metadata
        self.device = data.rank % (data.local_world_size or data.world_size or 1)
        self.strings: dict[str, int] = {}
        self.content: dict[str, list[Sequence[Any]]] = {name: [] for name in (*_PROFILER, *_MEMORY)}
        self.tasks = 0
        self.operations = 0
        self.streams = tables.stream_numbers(data)

    def text(self, value: str) -> int:
        return self.strings.setdefault(value, len(self.strings))

    def rows(self) -> Iterable[tuple[str, str, list[Sequence[Any]]]]:
        for step in self.data.steps:
            self.content["STEP_TIME"].append((step.number, step.begin, step.end))
            if self.data.level >= 1:
                self._kernels(step)
                self._copies(step)
            for call in step.own_calls():
                self._call(call)
            if self.data.on("with_cpu"):
                self._host(step)
            if self.data.on("with_memory"):
                self._memory(step)
        self._facts()
        self.content["STRING_IDS"] = [(number, value) for value, number in self.strings.items()]
        wanted = {**_PROFILER, **(_MEMORY if self.data.on("with_memory") else {})}
        return [(name, columns, self.content[name]) for name, columns in wanted.items()]

    def _task(self, start: int, end: int, kind: str, stream: int, connection: int) -> int:
        self.tasks += 1
        pid = self.data.pid
        self.content["TASK"].append(
            (
                start,
                end,
                self.device,
                connection,
                self.tasks,
                pid,
                self.text(kind),
                _NONE,
                stream,
                self.tasks,
                _NONE,
            )
        )
        return self.tasks

    def _launch(self, start: int, end: int, kind: int, tid: int, name: str) -> int:
        """A row of the host's call behind a task; its number connects the two."""
        connection = len(self.content["CANN_API"]) + 1
        where = self.data.pid << 32 | tid
        self.content["CANN_API"].append((start, end, kind, where, connection, self.text(name)))
        return connection

    def _kernels(self, step: Step) -> None:
        for kernel in kernels_of(step):
            operator = step.operators[kernel.operator]
            connection = self._launch(kernel.start, kernel.end, 10000, kernel.tid, operator.name)
            task = self._task(kernel.start, kernel.end, "CPU", self.streams[kernel.tid], connection)
            none = self.text("N/A")
            types = ";".join(str(t) for t in operator.arguments.get("Input type", ())) or "N/A"
            self.content["COMPUTE_TASK_INFO"].append((
                self.text(kernel.name), task, 1, 0, self.text("CPU"),
                self.text(kernel.name.removeprefix("aten::")),
                none, self.text(types), self.text(tables.shapes(operator) or "N/A"), *[none] * 4,
            ))  # fmt: skip

    def _copies(self, step: Step) -> None:
        """Copies of memory, as tasks beside the kernels that they are in: some recipes look for these."""
        for operator in step.operators:
            if operator.name == "aten::copy_":
                connection = self._launch(operator.start, operator.start, 10000, operator.tid, operator.name)
                stream = self.streams[operator.tid]
                self._task(operator.start, operator.end, "MEMCPY_ASYNC", stream, connection)

    def _call(self, call: Call) -> None:
        self.operations += 1
        group = self.data.groups.get(call.group)
        name = self.text(call.name(group.hash if group else ""))
        group_id = self.text(call.group)
        issued = min(call.issued or call.start, call.start)
        connection = self._launch(issued, call.start, 5500, self.data.pid, f"hcom_{call.kind}_")
        dtype = _TYPE_OF.get(call.dtype, 65534)
        self.content["COMMUNICATION_OP"].append((
            name, call.start, call.end, connection, group_id, self.operations, 0, 0, dtype,
            self.text(call.algorithm or "NA"), call.count, self.text(f"hcom_{call.kind}_"), self.device,
        ))  # fmt: skip
        local = group.local if group else (lambda rank: rank)
        for part in communication.tasks_of(call):
            peer = part.peer if part.peer >= 0 else self.data.rank
            transport, link = _LINK_OF[self.data.transport(peer)]
            kind = "Notify Wait" if part.kind == "wait" else "SDMA"
            task = self._task(part.start, part.start + part.length, kind, len(self.streams), connection)
            self.content["COMMUNICATION_TASK_INFO"].append((
                name, task, self.text(communication.TASKS[part.kind]), local(peer), group_id, _NONE, 65534,
                local(self.data.rank), local(peer), transport, part.bytes, dtype, link, self.operations,
            ))  # fmt: skip

    def _host(self, step: Step) -> None:
        lists, starts = tables.by_thread(step.functions)
        for operator in step.operators:
            stack = tables.call_stack(operator, lists, starts)
            chain = None
            if stack:
                chain = len(self.content["PYTORCH_CALLCHAINS"]) + 1
                for depth, frame in enumerate(stack.split(";\n")):
                    self.content["PYTORCH_CALLCHAINS"].append((chain, self.text(frame), depth))
            arguments = operator.arguments
            types = ";".join(str(t) for t in arguments.get("Input type", ()))
            shape = tables.shapes(operator)
            self.content["PYTORCH_API"].append((
                str(operator.start), str(operator.end), self.data.pid << 32 | operator.tid, None,
                self.text(operator.name), arguments.get("Sequence number"), arguments.get("Fwd thread id"),
                self.text(types) if types else None, self.text(shape) if shape else None, chain,
                50002 if issues_communication(operator.name) else 50001,
            ))  # fmt: skip

    def _memory(self, step: Step) -> None:
        component = self.text("PTA")
        for change in step.allocations:
            self.content["MEMORY_RECORD"].append(
                (component, change.time, change.allocated, change.reserved, change.allocated, 0, self.device)
            )
        for time, size in step.resident:
            self.content["NPU_MEM"].append((self.text("app"), size, 0, time, self.device))
        starts, places = tables.places_of(step)
        for made, freed in tables.blocks(step):
            known = made or freed
            assert known is not None
            length = freed.time - made.time if made and freed else None
            at = [made.time if made else None, freed.time if freed else None]
            totals = [change.allocated if change else None for change in (made, freed)]
            self.content["OP_MEMORY"].append((
                self.text(tables.owner(step, known, starts, places) or "N/A"), abs(known.bytes), *at, at[1],
                length, length, *[totals[0]] * 3, *[totals[1]] * 3, 0, self.device,
            ))  # fmt: skip

    def _facts(self) -> None:
        host = str(self.metadata.get("environment", {}).get("host", ""))
        uid = str(int.from_bytes(host.encode()[:7].ljust(7, b"\0"), "big"))
        content = self.content
        content["RANK_DEVICE_MAP"].append((self.data.rank, self.device))
        content["HOST_INFO"].append((uid, host))
        content["SESSION_TIME_INFO"].append((self.data.steps[0].begin, self.data.steps[-1].end))
        content["NPU_INFO"].append((self.device, "CPU"))
        version = {"SCHEMA_VERSION": "1.0.0", "SCHEMA_VERSION_MAJOR": "1", "SCHEMA_VERSION_MINOR": "0"}
        content["META_DATA"] += [*version.items(), ("SCHEMA_VERSION_MICRO", "0")]
        for key in ("ENV_VARIABLES", "distributed_args", "parallel_group_info"):
            if key in self.metadata:
                content["META_DATA"].append((key, json.dumps(self.metadata[key])))
        content["ENUM_API_TYPE"] += _API_TYPES.items()
        content["ENUM_HCCL_TRANSPORT_TYPE"] += _TRANSPORTS.items()
        content["ENUM_HCCL_LINK_TYPE"] += _LINKS.items()
        content["ENUM_HCCL_DATA_TYPE"] += [*enumerate(_TYPES), (65534, "N/A"), (65535, "INVALID_TYPE")]


def _analysis(data: RankData) -> Iterable[tuple[str, str, list[Sequence[Any]]]]:
    times: list[Sequence[Any]] = []
    sizes: list[Sequence[Any]] = []
    matrix: list[Sequence[Any]] = []
    steps: list[Sequence[Any]] = []
    for step in data.steps:
        figures = parts_of(step).nanoseconds()
        steps.append((str(step.number), *(figures[column] / 1000 for column in tables.STEP_COLUMNS)))
        label = f"step{step.number}"
        for kind, operators in communication.times_of_step(data, step).items():
            for key, part in operators.items():
                name, at, group = key.partition("@")
                if not at:  # the sums, which readers make anew
                    continue
                info = part["Communication Time Info"]
                columns = ("Start Timestamp(us)", "Elapse Time(ms)", "Transit Time(ms)", "Wait Time(ms)")
                figures_of_call = [info[c] for c in (*columns, "Synchronization Time(ms)", "Idle Time(ms)")]
                times.append((name, group, *figures_of_call, label, kind))
                sizes += _sizes(name, group, part["Communication Bandwidth Info"], label, kind)
        for kind, operators in communication.matrix_of_step(data, step).items():
            for key, links in operators.items():
                name, _, group = key.partition("@")
                for link, row in links.items():
                    source, _, destination = link.partition("-")
                    matrix.append((
                        name, group, source, destination, row["Transport Type"], row["Transit Size(MB)"],
                        row["Transit Time(ms)"], row["Bandwidth(GB/s)"], label, kind, row.get("Op Name", ""),
                    ))  # fmt: skip
    found = {"CommAnalyzerTime": times, "CommAnalyzerBandwidth": sizes, "CommAnalyzerMatrix": matrix}
    return [(name, columns, {**found, "StepTraceTime": steps}[name]) for name, columns in _ANALYSIS.items()]


def _sizes(name: str, group: str, links: dict[str, Any], step: str, kind: str) -> Iterable[Sequence[Any]]:
    """One row per link and size of packet; links without traffic have none."""
    for link, row in links.items():
        if not row["Transit Size(MB)"]:
            continue
        packets = row["Size Distribution"] or {"0": [0, 0]}
        for size, (count, duration) in packets.items():
            yield (
                name, group, link, row["Transit Size(MB)"], row["Transit Time(ms)"], row["Bandwidth(GB/s)"],
                row["Large Packet Ratio"], float(size), count, duration, step, kind,
            )  # fmt: skip
