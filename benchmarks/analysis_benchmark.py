#!/usr/bin/env python3
"""How fast profiles are read and analysed, on generated sets, with the peers beside where they are installed.

    python benchmarks/analysis_benchmark.py
    python benchmarks/analysis_benchmark.py --kineto-mb 100 --ascend-ranks 64 --json analysis.json
    python benchmarks/analysis_benchmark.py --hta hta_env/bin/python --msprof msprof_env/bin/msprof-analyze

    kineto    traces of torch.profiler, 8 ranks with kernels, collectives, launches and operators: everything;
              HTA (pip install HolisticTraceAnalysis==0.5.0 'pandas<3'): load, temporal breakdown and overlap
    ascend    directories of the Ascend profiler, text export Level1, 1,000 operators per rank: mode all;
              msprof-analyze cluster -m all

Each is a process of its own: seconds on the clock and of CPU time (of all its processes), peak memory of the
largest. The first run of a set is not shown: it reads the files from disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OURS = "import sys; from collective_ops import analyze; analyze.cluster(sys.argv[1], output=sys.argv[2])"
HTA = """\
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
"""
STEPS = 5


def kineto_event(
    kind: str, name: str, track: tuple[int, int], start: float, length: float, arguments: str
) -> str:
    """As the profiler lays an event out."""
    return (
        f'  {{\n    "ph": "X", "cat": "{kind}", "name": "{name}", "pid": {track[0]}, "tid": {track[1]},\n'
        f'    "ts": {start:.3f}, "dur": {length:.3f},\n    "args": {{\n      {arguments}\n    }}\n  }}'
    )


def kineto_events(megabytes: float) -> list[str]:
    """Of one rank: operators, each with a launch and a kernel; every tenth kernel is an all-reduce."""
    chance = random.Random(1)
    events: list[str] = []
    size, clock, number = 0.0, 1000.0, 0
    while size < megabytes * 1e6 * (1 - 1 / 512):
        number += 1
        took = round(chance.uniform(5, 60), 3)
        shape = f'"External id": {number}, "Record function id": 0, "Ev Idx": {number}, '
        shape += f'"Sequence number": {number}'
        shape += ', "Input Dims": [[32, 1024], [1024, 4096]], "Input type": ["float", "float"]'
        events.append(kineto_event("cpu_op", f"aten::op_{number % 90}", (4037, 4037), clock, took, shape))
        launch = f'"External id": {number}, "cbid": 211, "correlation": {number}'
        events.append(kineto_event("cuda_runtime", "cudaLaunchKernel", (4037, 4037), clock + 1, 3, launch))
        communication = number % 10 == 0
        kernel = f'"External id": {number}, "queued": 0, "device": 0, "context": 1,\n      "stream": '
        kernel += (
            f'{20 if communication else 7}, "correlation": {number},\n      "registers per thread": 96, '
        )
        kernel += '"shared memory": 41760, "blocks per SM": 0.1, "warps per SM": 1.2,\n      '
        kernel += '"grid": [24, 1, 1], "block": [288, 1, 1], "est. achieved occupancy %": 2'
        functor = f"functor_{number % 120}<float>"
        name = f"void at::native::vectorized_elementwise_kernel<4, {functor}, at::detail::Array>(int)"
        if communication:
            name = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
            kernel += (
                ', "Collective name": "allreduce", "In msg nelems": 1048576, "Out msg nelems": 1048576, '
            )
            kernel += f'"Group size": 8, "dtype": "Float", "Process Group Name": "0", "Seq": {number}'
        events.append(
            kineto_event("kernel", name, (0, 20 if communication else 7), clock + 8, took * 0.9, kernel)
        )
        clock += took
        size += len(events[-1]) + len(events[-2]) + len(events[-3]) + 6
    for step in range(STEPS):
        begin = 1000 + (clock - 1000) / STEPS * step
        length = (clock - 1000) / STEPS - 0.01
        mark = f'"External id": {number + step}'
        events.append(
            kineto_event("user_annotation", f"ProfilerStep#{step}", (4037, 4037), begin, length, mark)
        )
    return events


def make_kineto(folder: Path, megabytes: float, ranks: int) -> None:
    body = ",\n".join(kineto_events(megabytes / ranks))
    for rank in range(ranks):
        head = '{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", "rank": '
        head += f'{rank}, "world_size": {ranks}}},\n  "host_name": "host0",\n  "traceEvents": [\n'
        (folder / f"rank{rank}.json").write_text(head + body + "\n]}\n")


def ascend_operator(index: int, group: int, begin: float) -> tuple[str, dict[str, Any]]:
    nothing = {"Transit Size(MB)": 0, "Transit Time(ms)": 0, "Bandwidth(GB/s)": 0, "Large Packet Ratio": 0}
    moved = {"Transit Size(MB)": 117.440512, "Transit Time(ms)": 9.08862159375, "Bandwidth(GB/s)": 12.9217}
    sizes = {"8.404992": [12, 7.850436843749999], "8.290304": [2, 1.23818475]}
    times = {"Start Timestamp(us)": begin, "Elapse Time(ms)": 2.2811055625, "Transit Time(ms)": 1.2285845}
    times |= {"Wait Time(ms)": 0.0724014375, "Synchronization Time(ms)": 2e-05, "Idle Time(ms)": 0.980119625}
    links = {name: {**nothing, "Size Distribution": {}} for name in ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")}
    links["HCCS"] = {**moved, "Large Packet Ratio": 0.0, "Size Distribution": sizes}
    links["SDMA"] = {**moved, "Large Packet Ratio": 0, "Size Distribution": {}}
    ratios = {"Wait Time Ratio": 0.0557, "Synchronization Time Ratio": 0.0}
    info = {"Communication Time Info": times | ratios, "Communication Bandwidth Info": links}
    return f"hcom_allReduce__586_{index}_1@{group}", info


def make_ascend(folder: Path, ranks: int, operators: int) -> None:
    """Groups of eight ranks."""
    step = "Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    step += "Communication(Not Overlapped and Exclude Receive),Preparing\r\n"
    step += "50,8873.756,101963.203,4028.675,105991.878,25744.05,136581.0,0,101963.203,17902.5\r\n"
    for first in range(0, ranks, 8):
        group = 17522688603477080586 + first
        calls = dict(ascend_operator(i, group, 1736408883732241.5 + 2400 * i) for i in range(operators))
        text = json.dumps({"step50": {"p2p": {}, "collective": calls}})
        for rank in range(first, min(first + 8, ranks)):
            directory = folder / f"rank{rank}_ascend_pt"
            output = directory / "ASCEND_PROFILER_OUTPUT"
            output.mkdir(parents=True)
            (directory / f"profiler_info_{rank}.json").write_text(json.dumps({"rank_id": rank}))
            (output / "step_trace_time.csv").write_text(step)
            (output / "communication.json").write_text(text)
            link = {
                "Transport Type": "HCCS",
                "Transit Size(MB)": 61.2,
                "Transit Time(ms)": 3.9,
                "Bandwidth(GB/s)": 15.7,
            }
            links = {f"{rank - first}-{other}": link for other in range(8)}
            matrix = {"step50": {"p2p": {}, "collective": {f"allreduce-total@{group}": links}}}
            (output / "communication_matrix.json").write_text(json.dumps(matrix))


def measured(command: Sequence[str]) -> dict[str, float]:
    """Clock, CPU seconds and peak memory of a process and its children."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            output.seek(0)
            raise SystemExit(
                f"{' '.join(command)[:200]} failed:\n{output.read().decode(errors='replace')[-3000:]}"
            )
    return {"wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime, "memory_mb": usage.ru_maxrss / 1024}


def best_of(command: Sequence[str], runs: int) -> dict[str, float]:
    measured(command)
    return min((measured(command) for _ in range(runs)), key=lambda figures: figures["cpu_s"])


def show(
    name: str, size: float, events: int, figures: dict[str, float], ours: dict[str, float] | None
) -> None:
    wall, cpu = figures["wall_s"], figures["cpu_s"]
    speed = f"{size / wall / 1e9:8.3f} {size / cpu / 1e9:8.3f} {events / wall / 1e6:10.3f}"
    row = f"{name:24} {wall:8.2f} {cpu:8.2f} {figures['memory_mb']:8.0f} {speed}"
    if ours:
        ratios = [figures[key] / ours[key] for key in ("wall_s", "cpu_s", "memory_mb")]
        row += "   ours: {:.0f}x less wall, {:.0f}x less CPU, {:.1f}x less memory".format(*ratios)
    print(row, flush=True)


def run_set(
    name: str, folder: Path, events: int, peer: Sequence[str], options: argparse.Namespace
) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"\n{name}: {size / 1e6:.0f} MB, {events} events")
    print(f"{'':24} {'wall s':>8} {'CPU s':>8} {'MiB':>8} {'GB/s':>8} {'GB/CPU s':>8} {'M events/s':>10}")
    with tempfile.TemporaryDirectory() as results:
        ours = best_of([sys.executable, "-c", OURS, str(folder), results], options.runs)
    show("collective-ops", size, events, ours, None)
    found: dict[str, Any] = {"bytes": size, "events": events, "ours": ours}
    if peer:
        with tempfile.TemporaryDirectory() as results:
            command = [part.replace("OUT", results) for part in peer]
            found["peer"] = best_of(command, 1)
        show("peer", size, events, found["peer"], ours)
    return found


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kineto-mb", type=float, default=430, help="0: leave the set out (default: 430)")
    parser.add_argument("--kineto-ranks", type=int, default=8)
    parser.add_argument("--ascend-ranks", type=int, default=256, help="0: leave the set out (default: 256)")
    parser.add_argument("--ascend-operators", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3, help="the best is shown (default: 3)")
    parser.add_argument("--hta", metavar="PYTHON", help="a Python that has HTA")
    parser.add_argument("--msprof", metavar="PROGRAM", help="the program msprof-analyze")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        kineto, ascend = Path(folder) / "kineto", Path(folder) / "ascend"
        if options.kineto_mb > 0:
            kineto.mkdir()
            make_kineto(kineto, options.kineto_mb, options.kineto_ranks)
            events = sum(file.read_text().count('"ph"') for file in kineto.iterdir())
            peer = [options.hta, "-c", HTA, str(kineto)] if options.hta else []
            found["kineto"] = run_set("kineto", kineto, events, peer, options)
        if options.ascend_ranks > 0:
            make_ascend(ascend, options.ascend_ranks, options.ascend_operators)
            peer = (
                [options.msprof, "cluster", "-d", str(ascend), "-m", "all", "-o", "OUT"]
                if options.msprof
                else []
            )
            events = options.ascend_ranks * options.ascend_operators
            found["ascend"] = run_set("ascend", ascend, events, peer, options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
