"""Small profiles as the profilers write them, for tests and benchmarks of the analysis."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collective_ops import analyze

BASE_NS = 1_790_857_026_000_000_000
Event = dict[str, Any]


def event(
    name: str, cat: str, start_us: float, duration_us: float, *, pid: Any = 1, tid: Any = 7, **args: Any
) -> Event:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_us,
        "dur": duration_us,
        "args": args,
    }


def kineto(
    events: Sequence[Event], *, rank: int | None = 0, world_size: int = 1, host: str = "host0", **header: Any
) -> dict[str, Any]:
    """A file of today's schema: relative microseconds and baseTimeNanoseconds."""
    result: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [], "host_name": host}
    if rank is not None:
        result["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    return {**result, "baseTimeNanoseconds": BASE_NS, **header, "traceEvents": list(events)}


def write(path: Path, content: Any, **style: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(content, **style).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def training_job(
    folder: Path,
    *,
    ranks: int,
    steps: int = 10,
    late: dict[int, float] | None = None,
    noise_us: float = 2,
    seed: int = 1,
) -> None:
    """Each step computes 10 ms (the ranks in `late` so many us longer), then all-reduces for 1 ms from when
    the last rank has come. One file per rank."""
    chance = random.Random(seed)
    late = late or {}
    events: list[list[Event]] = [[] for _ in range(ranks)]
    now = [1000.0] * ranks
    for step in range(steps):
        begun = list(now)
        for rank in range(ranks):
            work = round(10_000 + late.get(rank, 0) + chance.uniform(0, noise_us), 3)
            events[rank].append(
                event("gemm", "kernel", now[rank], work, pid=0, correlation=step * 10 + 1, stream=7)
            )
            now[rank] += work
        end = max(now) + 1000
        for rank in range(ranks):
            arguments = {
                "Collective name": "allreduce",
                "In msg nelems": 1 << 20,
                "dtype": "Float",
                "stream": 20,
            }
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            took = round(end - now[rank], 3)
            events[rank].append(event(name, "kernel", round(now[rank], 3), took, pid=0, tid=20, **arguments))
            events[rank].append(
                event(
                    f"ProfilerStep#{step}",
                    "user_annotation",
                    round(begun[rank], 3),
                    round(end - begun[rank], 3),
                )
            )
            now[rank] = round(end + 5, 3)
    for rank in range(ranks):
        write(folder / f"rank{rank}.json", kineto(events[rank], rank=rank, world_size=ranks))


def tensor_parallel_job(
    folder: Path, *, ranks: int, late: dict[int, float], steps: int = 20, pair: int = 2
) -> None:
    """Each step computes 10 ms (ranks in `late` so many us longer), all-reduces among neighbours (`pair` of
    them), computes half a ms, and all-reduces among those of the same place in all pairs. All calls wait for
    their last rank, so that a late one delays ranks that it has no call with."""
    chance = random.Random(ranks)
    neighbours = [list(range(first, first + pair)) for first in range(0, ranks, pair)]
    across = [list(range(first, ranks, pair)) for first in range(pair)]
    now = [1000.0] * ranks
    events: list[list[Event]] = [[] for _ in range(ranks)]
    for step in range(steps):
        for kind, groups, work_us, took_us in (("tp", neighbours, 10_000, 200), ("dp", across, 500, 1000)):
            for rank in range(ranks):
                work = work_us + (late.get(rank, 0) if kind == "tp" else 0) + chance.uniform(0, 10)
                events[rank].append(event("gemm", "kernel", round(now[rank], 3), round(work, 3), pid=0))
                now[rank] = round(now[rank] + work, 3)
            for index, group in enumerate(groups):
                end = max(now[rank] for rank in group) + took_us
                arguments = {"Collective name": "allreduce", "In msg nelems": 4096, "dtype": "Float"}
                arguments |= {"Process Group Name": f"{kind}{index}", "Seq": step}
                for rank in group:
                    took = round(end - now[rank], 3)
                    call = event(
                        "ncclDevKernel_AllReduce", "kernel", now[rank], took, pid=0, tid=20, **arguments
                    )
                    events[rank].append(call)
                    now[rank] = round(end + 5, 3)
    for rank in range(ranks):
        config = [
            {"pg_name": f"tp{rank // pair}", "pg_desc": "tp", "ranks": neighbours[rank // pair]},
            {"pg_name": f"dp{rank % pair}", "pg_desc": "dp", "ranks": across[rank % pair]},
        ]
        content = kineto(events[rank], rank=rank, world_size=ranks)
        content["distributedInfo"]["pg_config"] = config
        write(folder / f"rank{rank}.json", content)


def ascend_rank(
    folder: Path,
    rank: int,
    *,
    step: str = "5",
    start_us: float = 1_736_408_883_732_241.5,
    elapsed_ms: Sequence[float] = (10.0, 4.0),
    gap_us: float = 100,
    group: str = "17522688603477080586",
    links: dict[str, float] | None = None,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """A directory of one rank, text export; its operators follow one another. `links`: GB/s of "src-dst"."""
    directory = folder / f"node_{100 + rank}_20250109075123456_ascend_pt"
    write(directory / f"profiler_info_{rank}.json", {"config": {}, "rank_id": rank})
    write(directory / "profiler_metadata.json", metadata or {})
    output = directory / "ASCEND_PROFILER_OUTPUT"
    output.mkdir()
    columns = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    columns += "Communication(Not Overlapped and Exclude Receive),Preparing"
    (output / "step_trace_time.csv").write_bytes(
        f"{columns}\r\n{step},8000.5,{rank + 1}00.25,50,{rank + 1}50.25,90.5,9000,0,100.25,17.5\r\n".encode()
    )
    operators = {}
    for index, elapsed in enumerate(elapsed_ms):
        nothing = {
            "Transit Size(MB)": 0,
            "Transit Time(ms)": 0,
            "Bandwidth(GB/s)": 0,
            "Large Packet Ratio": 0,
            "Size Distribution": {},
        }
        moved = {**nothing, "Transit Size(MB)": 20.0, "Transit Time(ms)": 2.0, "Bandwidth(GB/s)": 10.0}
        operators[f"hcom_allReduce__586_{index}_1@{group}"] = {
            "Communication Time Info": {
                "Start Timestamp(us)": start_us,
                "Elapse Time(ms)": elapsed,
                "Transit Time(ms)": 2.0,
                "Wait Time(ms)": 1.0,
                "Synchronization Time(ms)": 0.5,
                "Idle Time(ms)": elapsed - 3,
                "Wait Time Ratio": 0.3333,
                "Synchronization Time Ratio": 0.2,
            },
            "Communication Bandwidth Info": {
                "RDMA": nothing,
                "HCCS": {**moved, "Size Distribution": {"2.5": [8, 2.0]}},
                "PCIE": nothing,
                "SDMA": moved,
                "SIO": nothing,
            },
        }
        start_us += elapsed * 1000 + gap_us
    write(output / "communication.json", {f"step{step}": {"p2p": {}, "collective": operators}})
    matrix = {
        link: {
            "Transport Type": "LOCAL" if len(set(link.split("-"))) == 1 else "HCCS",
            "Transit Size(MB)": 10.0 * speed,
            "Transit Time(ms)": 10.0,
            "Bandwidth(GB/s)": speed,
        }
        for link, speed in (links or {}).items()
    }
    write(
        output / "communication_matrix.json",
        {f"step{step}": {"p2p": {}, "collective": {f"allreduce-total@{group}": matrix}}},
    )
    return directory


def analyzed(folder: Path, mode: str = "all") -> analyze.ClusterReport:
    return analyze.cluster(folder, mode, folder.parent / f"{folder.name}_results")


def rows_of(report: analyze.ClusterReport, name: str) -> list[dict[str, str]]:
    with next(file for file in report.files if file.name == name).open(newline="") as file:
        return list(csv.DictReader(file))
