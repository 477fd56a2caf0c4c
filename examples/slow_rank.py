#!/usr/bin/env python3
"""Who held the others up, and why: from the profiles of all ranks of a job.

python examples/slow_rank.py profiles/   # of torch.profiler, of Ascend's profiler, or comm_trace.json
python examples/slow_rank.py             # without profiles: eight made-up ranks; rank 5 computes longer
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from collective_ops import analyze


def make_up_profiles(folder: Path, ranks: int = 8, slow: int = 5) -> None:
    """Ten steps as torch.profiler writes them: a kernel, then an all-reduce that all ranks leave together."""
    for rank in range(ranks):
        events = []
        for step in range(10):
            begin, end = step * 12_000, step * 12_000 + 11_800
            computed = 10_000 if rank == slow else 8_000 + 7 * rank
            call = {
                "Collective name": "allreduce",
                "In msg nelems": 1 << 20,
                "Process Group Name": "0",
                "Seq": step,
            }
            for name, cat, start, stop, arguments in (
                (f"ProfilerStep#{step}", "user_annotation", begin, end, {}),
                ("gemm", "kernel", begin, begin + computed, {"stream": 7}),
                ("ncclDevKernel_AllReduce", "kernel", begin + computed, end, {"stream": 20, **call}),
            ):
                common = {"ph": "X", "pid": 0, "tid": 7, "ts": start, "dur": stop - start}
                events.append({**common, "name": name, "cat": cat, "args": arguments})
        header = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks}}
        (folder / f"rank{rank}.json").write_text(json.dumps({**header, "traceEvents": events}))


def explain(profiles: Path, results: Path) -> None:
    report = analyze.cluster(profiles, output=results)
    for step in report.data["ranks"][0]["steps"][:1]:
        print(f"rank 0, step {step['step']}: {step['computing_us'] / 1000:.1f} ms computing, ", end="")
        print(f"{step['exposed_communication_us'] / 1000:.1f} ms of communication that nothing hides")
    if not report.data["slow_ranks"]:
        print("no rank in particular holds the others up")
    for slow in report.data["slow_ranks"]:
        print(
            f"rank {slow['rank']} is slow (confidence {slow['confidence']}): {slow['late_ms']:.1f} ms in all"
        )
        print(f"  why: {slow['cause']}")
        print(f"  see: {slow['evidence']}")
    for problem in report.data["problems"]:
        print(f"not used: {problem['path']}: {problem['problem']}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results"
        if len(sys.argv) > 1:
            explain(Path(sys.argv[1]), results)
        else:
            profiles = Path(folder) / "profiles"
            profiles.mkdir()
            make_up_profiles(profiles)
            explain(profiles, results)


if __name__ == "__main__":
    main()
