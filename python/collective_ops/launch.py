"""`collective-ops run`: starts the ranks of this host, on torch.distributed.run's elastic agent.

The agent starts and ends the processes and sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
This module adds what its users ask for: msrun's spellings, DEVICE_IDS, one log per rank, and, where a rank
fails, that rank's error alone. In each rank's process `_start_rank.py` runs first; `_watch.py` follows them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from collective_ops._watch import TRACEBACK, LiveOutput, RankState, RankWatcher, first_failure, last_lines
from collective_ops.binding import parse_bind_core, plan_binding, usable_cores

SEVERAL_HOSTS_PORT = 29500  # as torchrun's
EXAMPLES = """\
examples:
  collective-ops run --nproc_per_node 8 train.py --epochs 3
      eight ranks; "python train.py" does the same. Rank 0's output is shown, all output is in
      runs/JOB/rank_K.log
  collective-ops run --nproc_per_node 8 -m package.train --epochs 3
      the same of a module
  DEVICE_IDS=4,5,6,7 collective-ops run train.py
      four ranks, with DEVICE_ID 4, 5, 6 and 7
  collective-ops run --nproc_per_node 8 --dry-run train.py
      shows the environment and the command of each rank, and starts nothing
  export COLLECTIVE_OPS_SECRET=...
  collective-ops run --nnodes 2 --node-rank 0 --master-addr node1 --nproc_per_node 8 train.py
      eight of sixteen ranks; the same on the second host with --node-rank 1. The secret is one for all hosts
  collective-ops run --worker_num=8 --local_worker_num=8 --log_dir=out --join=True python train.py
      the options of msrun are understood, too

COLLECTIVE_OPS_JOB_ID names the job where it is set; else the launcher makes a name.
Where a rank fails, its error is printed alone, and the others are stopped. On one host no port is fixed:
launches side by side do not meet.

exit code: 0 where all ranks ended well; else that of the first rank that failed, or 128 + the number of the
signal that ended it or the launch; 2 where the command line cannot be used, 1 where no rank could be started.
"""


@dataclass
class LaunchPlan:
    """Everything that is decided before a process starts."""

    command: list[str]
    device_ids: list[int]  # one per rank of this host
    job_id: str
    log_dir: Path
    shown: list[int]  # ranks of this host whose output is shown while they run
    environment: dict[str, str] = field(default_factory=dict)  # added to what the launcher itself has
    master_addr: str | None = None
    master_port: int | None = None
    start_timeout: int = 600
    kill_after: float = 5.0  # seconds between SIGTERM and SIGKILL
    json_file: Path | None = None
    cpus: list[list[int]] = field(default_factory=list)  # of each rank of this host; []: any
    nodes: int = 1  # hosts, each with as many ranks
    node: int = 0  # this one

    @property
    def world_size(self) -> int:
        return len(self.device_ids) * self.nodes

    @property
    def ranks(self) -> range:
        """Those of this host."""
        return _ranks_of(self.node, len(self.device_ids))

    def log(self, rank: int) -> Path:
        return self.log_dir / f"rank_{rank}.log"


class Stopped(Exception):
    """A signal came; `sigval` as in the exception of PyTorch's agent."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.sigval = number


def _stop(number: int, _frame: object) -> None:
    raise Stopped(number)


class UsageError(Exception):
    """The command line or DEVICE_IDS cannot be used; the text says why and what to write."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    count = parser.add_argument_group("how many ranks (default: as many as DEVICE_IDS names)")
    count.add_argument(
        "--nproc_per_node",
        "--nproc-per-node",
        "--nproc",
        type=_positive,
        metavar="N",
        help="ranks on this host, and as many on each other one",
    )
    count.add_argument("--worker_num", type=_positive, metavar="N", help="msrun: ranks in all")
    count.add_argument("--local_worker_num", type=_positive, metavar="N", help="msrun: ranks on this host")
    where = parser.add_argument_group("where they meet (default: on a free port of this host)")
    where.add_argument(
        "--master_addr", "--master-addr", metavar="HOST", help="of node 0; exported as MASTER_ADDR"
    )
    where.add_argument(
        "--master_port",
        "--master-port",
        type=_positive,
        metavar="PORT",
        help=f"instead of a free one; over several hosts it is {SEVERAL_HOSTS_PORT} where not given",
    )
    where.add_argument(
        "--cluster_time_out",
        type=_positive,
        metavar="SECONDS",
        help="how long ranks wait for each other at the start (HCCL_CONNECT_TIMEOUT)",
    )
    where.add_argument("--nnodes", type=_positive, metavar="N", help="hosts (default 1); start each one's")
    where.add_argument(
        "--node_rank", "--node-rank", type=int, metavar="N", help="which of the hosts this is, from 0"
    )
    where.add_argument(
        "--standalone", action="store_true", help="torchrun's word for what is the default here"
    )
    _add_output_arguments(parser)
    cores = parser.add_argument_group("cores")
    cores.add_argument(
        "--bind_core",
        "--bind-core",
        type=_bind_core,
        default=False,
        metavar="True",
        help='bind each rank to its share of the cores; or cpus by device: {"device0": ["0-3"], ...}',
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="run a module: -m package.train ARGS, as python -m does"
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="[python] train.py ARGS",
        help="what each rank runs; a name that ends in .py, and `python`, run with this Python",
    )


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--log_dir", "--log-dir", type=Path, metavar="DIR", help="default: runs/JOB")
    output.add_argument(
        "--show",
        "--tail_worker_log",
        metavar="RANKS",
        default="0",
        help="ranks to show while they run: all, none, or a list such as 0,3 (default 0)",
    )
    output.add_argument(
        "--join",
        type=_boolean,
        default=True,
        metavar="True",
        help="msrun: wait for the ranks; always done here",
    )
    output.add_argument(
        "--json", type=Path, metavar="FILE", help="write a summary: exit code of each rank, logs"
    )
    output.add_argument(
        "--dry-run", action="store_true", help="show environment and command of each rank, start none"
    )


def run(options: argparse.Namespace) -> int:
    """Returns the exit code of the launch."""
    try:
        plan = make_plan(options, os.environ)
        if options.dry_run:
            print(describe(plan))
            return 0
        return launch(plan)
    except UsageError as error:
        print(f"collective-ops run: {error}", file=sys.stderr)
        return 2


def make_plan(options: argparse.Namespace, environ: os._Environ | dict[str, str]) -> LaunchPlan:
    devices = _device_ids(environ.get("DEVICE_IDS", ""))
    nodes, node = _nodes(options)
    local_size = _local_size(options, devices, nodes)
    job_id = fresh = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    if nodes > 1:  # equal on all hosts
        options.master_port = options.master_port or SEVERAL_HOSTS_PORT
        job_id = f"{options.master_addr}-{options.master_port}"
    if "RANK" not in environ:  # else a rank of another job starts this one
        job_id = environ.get("COLLECTIVE_OPS_JOB_ID") or job_id
    name = job_id if nodes == 1 else f"{job_id}-node{node}"
    logs = _default_log_dir() / (re.sub(r"[^\w.-]", "_", name).lstrip(".") or "job")
    if logs.exists():  # of an earlier run with this id
        logs = logs.with_name(f"{logs.name}-{fresh}")
    plan = LaunchPlan(
        command=_command(options.command, options.module),
        device_ids=devices[:local_size] if devices else list(range(local_size)),
        job_id=job_id,
        log_dir=(options.log_dir or logs).absolute(),
        shown=_shown(options.show, local_size * nodes, _ranks_of(node, local_size)),
        master_addr=options.master_addr,
        master_port=options.master_port,
        json_file=options.json,
        nodes=nodes,
        node=node,
    )
    plan.cpus = _bound_cpus(options.bind_core, plan.device_ids)
    plan.environment = {"COLLECTIVE_OPS_JOB_ID": job_id}
    secret = any(environ.get(name) for name in ("COLLECTIVE_OPS_SECRET", "COLLECTIVE_OPS_SECRET_FILE"))
    if nodes == 1 and not secret:  # over several hosts it has to be theirs; without one the ranks say so
        plan.environment["COLLECTIVE_OPS_SECRET"] = secrets.token_hex(32)
    if "OMP_NUM_THREADS" not in environ:
        cores = len(os.sched_getaffinity(0))
        plan.environment["OMP_NUM_THREADS"] = str(max(1, cores // local_size))
    if "PYTHONUNBUFFERED" not in environ:
        plan.environment["PYTHONUNBUFFERED"] = "1"  # else a log is empty until its rank ends
    if options.cluster_time_out:
        plan.start_timeout = options.cluster_time_out
        if "HCCL_CONNECT_TIMEOUT" not in environ:
            plan.environment["HCCL_CONNECT_TIMEOUT"] = str(min(7200, options.cluster_time_out))
    if len(plan.shown) == 1 and sys.stdout.isatty():
        plan.environment["COLLECTIVE_OPS_TERMINAL"] = "1"
    return plan


def describe(plan: LaunchPlan) -> str:
    here = f"{len(plan.ranks)} of {plan.world_size}" if plan.nodes > 1 else f"{plan.world_size}"
    lines = [f"{here} ranks, logs in {_short(plan.log_dir)}/rank_K.log"]
    for local_rank, (rank, device_id) in enumerate(zip(plan.ranks, plan.device_ids, strict=True)):
        variables = {
            "RANK": rank,
            "LOCAL_RANK": local_rank,
            "WORLD_SIZE": plan.world_size,
            "DEVICE_ID": device_id,
            "MASTER_ADDR": plan.master_addr or "localhost",
            "MASTER_PORT": plan.master_port or "<free port>",
        } | plan.environment
        if "COLLECTIVE_OPS_SECRET" in variables:
            variables["COLLECTIVE_OPS_SECRET"] = "<fresh secret>"
        words = " ".join(f"{name}={value}" for name, value in variables.items())
        bound = plan.cpus[local_rank]
        cpus = f" (on cpu {','.join(map(str, bound))})" if bound else ""
        lines.append(f"rank {rank}{cpus}: {words} {shlex.join(plan.command)}")
    return "\n".join(lines)


def launch(plan: LaunchPlan) -> int:
    try:
        plan.log_dir.mkdir(parents=True, exist_ok=True)
        for old in plan.log_dir.glob("rank_*.log"):
            if plan.nodes == 1 or old in map(plan.log, plan.ranks):  # hosts may share the folder
                old.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write logs to {plan.log_dir}: {error.strerror}; give another --log_dir"
        ) from error
    began = time.monotonic()
    state_directory = Path(tempfile.mkdtemp(prefix="collective-ops-"))
    try:
        ranks, signal_number, problem = _run_ranks(plan, state_directory)
    finally:
        shutil.rmtree(state_directory, ignore_errors=True)
    exit_code = _report(plan, ranks, signal_number, problem)
    _merge_trace(plan)
    if plan.json_file is not None:
        _write_summary(plan, ranks, exit_code, time.monotonic() - began)
    return exit_code


def _run_ranks(plan: LaunchPlan, state_directory: Path) -> tuple[dict[int, RankState], int, str]:
    """Runs all ranks to their end. Returns their states, the signal that stopped the launch (0: none), and
    what kept it from starting (""). No process is left where ranks failed or a signal came."""
    (state_directory / "start.json").write_text(
        json.dumps(
            {
                "command": plan.command,
                "device_ids": plan.device_ids,
                "cpus": plan.cpus,
                "launcher_pid": os.getpid(),
                "log": str(plan.log_dir).replace("{", "{{").replace("}", "}}") + "/rank_{rank}.log",
            }
        )
    )
    watcher = RankWatcher(state_directory, plan.kill_after)
    live = LiveOutput({rank: plan.log(rank) for rank in plan.shown}, watcher.failed)
    watcher.start()
    live.start()
    exit_codes: dict[int, int] = {}
    signal_number, problem, clean = 0, "", False
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)  # until the agent, which does the same, is up
    try:
        exit_codes = _run_agent(plan, state_directory)
        clean = not exit_codes
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the agent raises, no rank may be left behind
        signal_number = int(getattr(error, "sigval", 0))
        problem = "" if signal_number else f"{type(error).__name__}: {error}"
    finally:
        with _signals_ignored():
            if not clean:
                watcher.kill()
            watcher.stop()
            live.stop(drop_held=not clean)
    for rank, state in watcher.ranks.items():
        if state.exit_code is None:
            state.exit_code = exit_codes.get(rank, 0 if clean else None)
    for rank, code in exit_codes.items():
        watcher.ranks.setdefault(rank, RankState(pid=0)).exit_code = code
    return watcher.ranks, signal_number, problem


def _run_agent(plan: LaunchPlan, state_directory: Path) -> dict[int, int]:
    """Returns the exit codes of failed ranks. Raises what the agent raises, a signal among it."""
    try:
        with _variable(
            "TORCH_CPP_LOG_LEVEL", "ERROR"
        ):  # read once; where hosts end one after the other it warns
            import torch.distributed  # noqa: F401
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    except ImportError as error:
        raise UsageError(
            f"PyTorch's launcher is needed and cannot be imported ({error}). Install it, or start the "
            "ranks by a shell loop that sets RANK, WORLD_SIZE and DEVICE_ID."
        ) from error
    os.environ.update(plan.environment)
    static = plan.master_port is not None
    address = plan.master_addr or "localhost"
    config = LaunchConfig(
        min_nodes=plan.nodes,
        max_nodes=plan.nodes,
        nproc_per_node=len(plan.ranks),
        run_id=plan.job_id,
        rdzv_backend="static" if static else "c10d",
        rdzv_endpoint=f"{address}:{plan.master_port}" if static else "localhost:0",
        rdzv_configs={"rank": plan.node, "timeout": plan.start_timeout}
        if static
        else {"timeout": plan.start_timeout},
        local_addr=address if plan.nodes == 1 else None,
        max_restarts=0,
        monitor_interval=0.2,
        shutdown_timeout=3,
        logs_specs=DefaultLogsSpecs(log_dir=str(state_directory)),
    )
    start = Path(__file__).with_name("_start_rank.py")
    logging.disable(logging.CRITICAL)  # the agent's own account of a failure; ours follows
    try:
        elastic_launch(config, sys.executable)("-I", "-S", str(start), str(state_directory))
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    finally:
        logging.disable(logging.NOTSET)
    return {}


def _report(plan: LaunchPlan, ranks: dict[int, RankState], signal_number: int, problem: str) -> int:
    """Prints what went wrong, if anything did, and returns the exit code of the launch."""
    logs = f"logs of all ranks: {_short(plan.log_dir)}"
    if signal_number:
        name = signal.Signals(signal_number).name
        print(f"\ncollective-ops run: stopped by {name}; no rank is left; {logs}", file=sys.stderr)
        return 128 + signal_number
    failed = first_failure(ranks, {rank: plan.log(rank) for rank in plan.ranks})
    if failed is None:
        if problem:
            print(f"collective-ops run: the ranks could not be started: {problem}", file=sys.stderr)
            return 1
        return 0
    code = ranks[failed].exit_code
    tail = last_lines(plan.log(failed))
    # What was shown while it ran is not shown again; a traceback was held back.
    already_shown = failed in plan.shown and tail and not tail.startswith(TRACEBACK)
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
    what = (
        "its output is above" if already_shown else "the last it printed:" if tail else "it printed nothing"
    )
    print(f"collective-ops run: rank {failed} of {plan.world_size} {how}; {what}", file=sys.stderr)
    if tail and not already_shown:
        print(tail.decode(errors="replace"), file=sys.stderr)
    ended = sorted(rank for rank, state in ranks.items() if state.exit_code == 0)
    if ended:
        print(f"rank {', '.join(map(str, ended))} ended without an error", file=sys.stderr)
    print(f"collective-ops run: the other ranks were stopped; {logs}", file=sys.stderr)
    return 128 - code if code < 0 else code


def _merge_trace(plan: LaunchPlan) -> None:
    """The last rank out merges the trace; where ranks were killed, none did, and it is done here."""
    if os.environ.get("COLLECTIVE_OPS_TRACE", "0") in ("", "0", "false", "off"):
        return
    try:
        from collective_ops import trace

        merged = trace.merge_job(f"id {plan.job_id}")  # how the core calls a job that was given a name
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        print(f"collective-ops run: the trace was not merged: {error}", file=sys.stderr)
        return
    if merged is not None:
        print(
            f"collective-ops run: trace of the ranks that ended early merged into {merged}", file=sys.stderr
        )


def _write_summary(plan: LaunchPlan, ranks: dict[int, RankState], exit_code: int, seconds: float) -> None:
    failed = first_failure(ranks, {rank: plan.log(rank) for rank in plan.ranks})
    summary = {
        "job_id": plan.job_id,
        "world_size": plan.world_size,
        "exit_code": exit_code,
        "seconds": round(seconds, 3),
        "first_failing_rank": failed,
        "ranks": [
            {
                "rank": rank,
                "device_id": plan.device_ids[rank],
                "exit_code": state.exit_code,
                "log": str(plan.log(rank)),
            }
            for rank, state in sorted(ranks.items())
        ],
    }
    plan.json_file.write_text(json.dumps(summary, indent=1) + "\n")


def _positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number from 1 on")
    return int(text)


def _bind_core(text: str) -> bool | dict[int, list[int]]:
    try:
        return parse_bind_core(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _bound_cpus(wanted: bool | dict[int, list[int]], device_ids: list[int]) -> list[list[int]]:
    """What cannot be done is one warning: ranks run without it, only slower."""
    if wanted is False:
        return [[] for _ in device_ids]
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except OSError as error:
        print(f"collective-ops run: --bind_core: not allowed here ({error.strerror})", file=sys.stderr)
        return [[] for _ in device_ids]
    cpus, warning = plan_binding(wanted, device_ids, usable_cores())
    if warning:
        print(f"collective-ops run: {warning}", file=sys.stderr)
    return cpus


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"{text}: True or False")
    return text.lower() in ("true", "1")


def _device_ids(text: str) -> list[int]:
    items = [item for item in re.split(r"[,\s]+", text.strip()) if item]
    if not all(re.fullmatch(r"[0-9]+", item) for item in items):
        raise UsageError(f'DEVICE_IDS="{text}": expected numbers with commas between, such as 0,1,2,3')
    devices = [int(item) for item in items]
    if len(set(devices)) != len(devices):
        raise UsageError(f'DEVICE_IDS="{text}" names a device twice')
    return devices


def _ranks_of(node: int, local_size: int) -> range:
    return range(node * local_size, (node + 1) * local_size)


def _nodes(options: argparse.Namespace) -> tuple[int, int]:
    """How many hosts, and which one this is."""
    nodes = options.nnodes or 1
    if not options.nnodes and options.worker_num and options.local_worker_num:  # msrun counts ranks alone
        nodes, rest = divmod(options.worker_num, options.local_worker_num)
        if rest or nodes < 1:
            raise UsageError(
                f"--worker_num {options.worker_num} and --local_worker_num {options.local_worker_num}: every "
                "host has as many ranks, so the first is a multiple of the second"
            )
    if nodes == 1:
        if options.node_rank and options.node_rank > 0:
            raise UsageError(f"--node_rank {options.node_rank}: there is one host; give --nnodes, too")
        return 1, 0
    if options.node_rank is None or not 0 <= options.node_rank < nodes:
        raise UsageError(f"which of the {nodes} hosts is this? Give --node_rank 0 to {nodes - 1}, each once")
    if not options.master_addr:
        raise UsageError("where is node 0? Give --master_addr, its name or address, alike on all hosts")
    return nodes, options.node_rank


def _local_size(options: argparse.Namespace, devices: list[int], nodes: int) -> int:
    given = {
        f"--{name} {getattr(options, name)}": getattr(options, name)
        for name in ("nproc_per_node", "local_worker_num")
        if getattr(options, name)
    }
    if options.worker_num:
        given[f"--worker_num {options.worker_num}"] = options.worker_num / nodes
    if len(set(given.values())) > 1:
        hosts = "all ranks run on this host" if nodes == 1 else f"each of {nodes} hosts has as many ranks"
        raise UsageError(f"{' and '.join(given)} differ: {hosts}")
    if not given and not devices:
        raise UsageError("how many ranks? Give --nproc_per_node 8, or set DEVICE_IDS=0,1,2,3,4,5,6,7")
    local_size = next(iter(given.values())) if given else len(devices)
    if local_size != int(local_size):
        raise UsageError(f"{next(iter(given))}: {nodes} hosts have as many ranks each")
    if devices and local_size > len(devices):
        raise UsageError(
            f"{next(iter(given))}, but DEVICE_IDS names {len(devices)} devices; unset one of them"
        )
    return int(local_size)


def _command(words: list[str], is_module: bool) -> list[str]:
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise UsageError(
            "what shall the ranks run? For example: collective-ops run --nproc_per_node 8 train.py"
        )
    if is_module:
        return [sys.executable, "-m", *words]
    if words[0] in ("python", "python3"):
        return [sys.executable, *words[1:]]
    if words[0].endswith(".py"):
        if not Path(words[0]).is_file():
            raise UsageError(f"there is no file {words[0]}")
        return [sys.executable, *words]
    return words


def _shown(text: str, world_size: int, here: range) -> list[int]:
    if text in ("all", "-1"):
        return list(here)
    if text == "none":
        return []
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UsageError(f"--show {text}: expected all, none, or ranks such as 0,3")
    ranks = sorted({int(item) for item in text.split(",")})
    if ranks[-1] >= world_size:
        raise UsageError(f"--show {text}: the last rank is {world_size - 1}")
    return [rank for rank in ranks if rank in here]


def _default_log_dir() -> Path:
    return Path("runs") if os.access(".", os.W_OK) else Path(tempfile.gettempdir()) / "collective-ops-runs"


def _short(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


@contextlib.contextmanager
def _variable(name: str, value: str):
    """Set in this process for a while, where the user has not."""
    is_new = name not in os.environ and bool(os.environ.setdefault(name, value))
    try:
        yield
    finally:
        if is_new:
            del os.environ[name]


@contextlib.contextmanager
def _signals_ignored():
    """While the last processes are ended, another Ctrl-C must not leave some of them behind."""
    handled = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in handled]
    try:
        yield
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)
