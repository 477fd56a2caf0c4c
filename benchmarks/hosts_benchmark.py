#!/usr/bin/env python3
"""Collectives over several hosts beside Gloo, and beside what sockets alone can do, in one run.

    python benchmarks/hosts_benchmark.py                                  2 and 4 hosts of 1, 2 and 4 ranks
    python benchmarks/hosts_benchmark.py --hosts 2 --ranks 2 --sizes 8,1048576
    python benchmarks/hosts_benchmark.py --rate 1gbit --delay-us 1000 --sizes 1048576,16777216

Hosts are network namespaces of this machine, joined by a bridge (root only). Both products live in the same
processes and take turns, round by round; of each round the slowest rank counts, of the rounds the median.
`raw` is an exchange between neighbours over as many sockets, of the bytes that an all_reduce has to send from
each rank of a host: 2 (H-1)/H S / p for H hosts of p ranks. It reduces nothing, and waits for nothing else.
`inside` is the same all_reduce within each host alone, on all hosts at once: what a call over hosts has to do
beside the exchange, on the same cores. `bound` is both, one after the other, over ours: where ranks outnumber
the machine's cores all of it takes turns on them, and 1 is the best there can be; with a core per rank the
exchange hides what is inside, and it may be above 1.
Gloo runs a ring over all ranks, whichever hosts they are on. CPU is what the processes of all ranks used in a
contender's turn, nanoseconds per byte of the vector. Where the links have a rate there is `model`, too: what
`collective-ops tune explain` prices the call at, on hosts with links of this rate and delay.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

SIZES = (8, 1 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
COLLECTIVES = ("all_reduce",)
ROOT = Path(__file__).resolve().parent.parent
RAW_PORT = 23000
MOST_CALLS = 2000
Turn = Callable[[], object]


def main() -> int:
    parser = argparse.ArgumentParser(description="Time collectives over hosts on ours, Gloo and raw sockets.")
    parser.add_argument("--hosts", default="2,4", help="numbers of hosts, with commas")
    parser.add_argument("--ranks", default="1,2,4", help="numbers of ranks on each, with commas")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes, with commas")
    parser.add_argument(
        "--collectives",
        default=",".join(COLLECTIVES),
        help="all_reduce, all_gather, reduce_scatter, broadcast, all_to_all",
    )
    parser.add_argument(
        "--rate", help="of each host's link, as tc writes it (1gbit); default: as fast as it goes"
    )
    parser.add_argument(
        "--delay-us", type=int, default=0, help="of each link, one way; needs a rate in gbit or mbit"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of each contender's turn, about")
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("--rank-output", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_output:
        run_rank(options)
        return 0
    sys.path.insert(0, str(ROOT / "tests" / "python"))
    results = []
    for hosts in map(int, options.hosts.split(",")):
        for ranks in map(int, options.ranks.split(",")):
            rows = run_hosts(options, hosts, ranks)
            print_table(hosts, ranks, rows)
            results += rows
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))
    return 0


def run_hosts(options: argparse.Namespace, hosts: int, ranks: int) -> list[dict]:
    from network_hosts import NetworkHosts  # the hosts that the tests run on

    output = Path(f"/tmp/hosts_benchmark.{os.getpid()}.json")
    variables = {
        "COLLECTIVE_OPS_SECRET": os.urandom(16).hex(),
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "python"),
    }
    with NetworkHosts(hosts, rate=options.rate, delay_us=options.delay_us) as network:
        variables["RAW_HOSTS"] = ",".join(network.addresses)
        command = [sys.executable, *sys.argv, "--rank-output", str(output)]
        ends = network.run_ranks(command, ranks, env=variables, timeout=500)
    for end in ends:
        if end.exit_code != 0:
            raise SystemExit(f"rank {end.rank} failed:\n{end.output}")
    rows = json.loads(output.read_text())
    output.unlink()
    if options.rate:
        for row in rows:
            row["us"]["model"] = priced_us(options, row, hosts, ranks)
    return rows


def priced_us(options: argparse.Namespace, row: dict, hosts: int, ranks: int) -> float:
    link = options.rate.replace("gbit", "Gbit/s").replace("mbit", "Mbit/s")
    words = ["tune", "explain", row["collective"], str(row["bytes"]), "--ranks", str(hosts * ranks)]
    words += ["--hosts", str(hosts), "--link", f"{link},{options.delay_us}us", "--private", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "collective_ops", *words], capture_output=True, text=True, check=True
    )
    plans = json.loads(done.stdout)["candidates"]
    return next(plan["total_ns"] / 1e3 for plan in plans if plan["chosen"])


def print_table(hosts: int, ranks: int, rows: list[dict]) -> None:
    print(f"\n{hosts} hosts x {ranks} ranks: microseconds of a call; CPU nanoseconds of all ranks per byte")
    print(f"{'collective':<15}{'bytes':>10}{'ours':>11}{'gloo':>11}{'gloo/ours':>10}{'raw':>11}{'raw/ours':>9}"
          f"{'inside':>11}{'bound':>7}{'CPU':>9}{'gloo':>9}{'raw':>9}"
          f"{'model':>11}{'ours/model':>11}")  # fmt: skip
    for row in rows:
        us = row["us"]
        cpu = {name: ms * 1e6 / row["bytes"] for name, ms in row["cpu_ms"].items()}
        raw, model = us.get("raw", math.nan), us.get("model", math.nan)
        inside = us.get("inside", 0.0 if ranks == 1 else math.nan)
        bound = (raw + inside) / us["ours"]
        print(f"{row['collective']:<15}{row['bytes']:>10}{us['ours']:>11.1f}{us['gloo']:>11.1f}"
              f"{us['gloo'] / us['ours']:>10.2f}{raw:>11.1f}{raw / us['ours']:>9.2f}"
              f"{inside:>11.1f}{bound:>7.2f}"
              f"{cpu['ours']:>9.2f}{cpu['gloo']:>9.2f}{cpu.get('raw', math.nan):>9.2f}"
              f"{model:>11.1f}{us['ours'] / model:>11.2f}",
              flush=True)  # fmt: skip


def run_rank(options: argparse.Namespace) -> None:
    import collective_ops as ours
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    addresses = os.environ["RAW_HOSTS"].split(",")
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    ours.init_hccl()
    raw = RawExchange(rank, world, addresses)
    local = world // len(addresses)
    begin = rank // local * local
    inside = ours.new_group(list(range(begin, begin + local))) if local > 1 else None
    rows = []
    for collective in options.collectives.split(","):
        for size in map(int, options.sizes.split(",")):
            turns = turns_of(collective, max(size // 4, 1), world, torch, dist, ours)
            if collective == "all_reduce" and size >= 1 << 20:
                hosts = len(addresses)
                share = 2 * (hosts - 1) * size // hosts // (world // hosts)
                turns["raw"] = lambda share=share: raw.exchange(share)
                if inside is not None:
                    vector = torch.ones(size // 4)
                    turns["inside"] = lambda vector=vector: inside.allreduce(vector, op="max")
            us, cpu = measure(options, turns, dist, torch)
            if rank == 0:
                place = {"hosts": len(addresses), "ranks": world // len(addresses), "rate": options.rate}
                rows.append({**place, "collective": collective, "bytes": size, "us": us, "cpu_ms": cpu})
    if rank == 0:
        Path(options.rank_output).write_text(json.dumps(rows))
    dist.barrier()
    ours.finalize()
    dist.destroy_process_group()


def turns_of(collective: str, count: int, world: int, torch, dist, ours) -> dict[str, Turn]:
    """`count`: elements of float32, of the vector or of one rank's part."""
    if collective == "all_reduce":
        a, b = torch.ones(count), torch.ones(count)
        return {
            "ours": lambda: ours.allreduce(a, op="max"),
            "gloo": lambda: dist.all_reduce(b, op=dist.ReduceOp.MAX),
        }
    if collective == "broadcast":
        a, b = torch.ones(count), torch.ones(count)
        return {"ours": lambda: ours.broadcast(a), "gloo": lambda: dist.broadcast(b, 0)}
    part, whole, whole2 = torch.ones(count), torch.ones(count * world), torch.ones(count * world)
    if collective == "all_gather":
        return {
            "ours": lambda: ours.allgather(part, whole),
            "gloo": lambda: dist.all_gather_into_tensor(whole2, part),
        }
    if collective == "reduce_scatter":
        mine = torch.ones(count)
        return {"ours": lambda: ours.reducescatter(whole, "max", mine),
                "gloo": lambda: dist.reduce_scatter_tensor(part, whole2, op=dist.ReduceOp.MAX)}  # fmt: skip
    if collective == "all_to_all":
        got = torch.ones(count * world)
        return {
            "ours": lambda: ours.alltoall(got, whole),
            "gloo": lambda: dist.all_to_all_single(got, whole2),
        }
    raise SystemExit(f"there is no collective {collective}")


def measure(options: argparse.Namespace, turns: dict[str, Turn], dist, torch) -> tuple[dict, dict]:
    times: dict[str, list[float]] = {name: [] for name in turns}
    cpus: dict[str, list[float]] = {name: [] for name in turns}
    calls = {}
    for name, turn in turns.items():
        turn()  # connections, plans, pages
        seconds, _ = batch(turn, 1, dist, torch)
        seconds, _ = batch(turn, max(1, min(20, int(0.02 / seconds))), dist, torch)
        calls[name] = max(1, min(MOST_CALLS, int(options.seconds / seconds)))
    for number in range(options.rounds):
        for name in turns if number % 2 == 0 else reversed(turns):
            seconds, cpu = batch(turns[name], calls[name], dist, torch)
            times[name].append(seconds)
            cpus[name].append(cpu)
    return ({name: statistics.median(values) * 1e6 for name, values in times.items()},
            {name: statistics.median(values) * 1e3 for name, values in cpus.items()})  # fmt: skip


def batch(turn: Turn, calls: int, dist, torch) -> tuple[float, float]:
    """Seconds of a call on the slowest rank, and CPU seconds of all."""
    dist.barrier()
    begin, used = time.perf_counter(), cpu_seconds()
    for _ in range(calls):
        turn()
    figures = torch.tensor([time.perf_counter() - begin, cpu_seconds() - used], dtype=torch.float64)
    slowest, total = figures[:1].clone(), figures[1:].clone()
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    dist.all_reduce(total)
    return slowest.item() / calls, total.item() / calls


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class RawExchange:
    """Sockets between each rank and those in its place on the next host and the one before."""

    def __init__(self, rank: int, world: int, addresses: list[str], connections: int = 2) -> None:
        hosts, ranks = len(addresses), world // len(addresses)
        host, place = divmod(rank, ranks)
        server = socket.create_server(("", RAW_PORT + place), backlog=16)
        target = (addresses[(host + 1) % hosts], RAW_PORT + place)
        self.out = [self._connect(target) for _ in range(connections)]
        self.into = [server.accept()[0] for _ in range(connections)]
        for one in self.out + self.into:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)
        self.memory = bytearray(1), bytearray(1)

    @staticmethod
    def _connect(target: tuple[str, int]) -> socket.socket:
        for _ in range(1000):
            try:
                return socket.create_connection(target)
            except OSError:
                time.sleep(0.01)
        raise SystemExit(f"nobody listens at {target}")

    def exchange(self, size: int) -> None:
        if len(self.memory[0]) < size:
            self.memory = bytearray(size), bytearray(size)
        poller, open_ends = select.poll(), {}
        for buffer, sockets, events in ((0, self.out, select.POLLOUT), (1, self.into, select.POLLIN)):
            for number, one in enumerate(sockets):
                view = memoryview(self.memory[buffer])[
                    number * size // len(sockets) : (number + 1) * size // len(sockets)
                ]
                if len(view):
                    poller.register(one, events)
                    open_ends[one.fileno()] = [one, view, events]
        while open_ends:
            for descriptor, _ in poller.poll():
                one, view, events = open_ends[descriptor]
                try:
                    done = one.send(view) if events == select.POLLOUT else one.recv_into(view)
                except BlockingIOError:
                    continue
                open_ends[descriptor][1] = view[done:]
                if done == len(view):
                    poller.unregister(descriptor)
                    del open_ends[descriptor]


if __name__ == "__main__":
    sys.exit(main())
