#!/usr/bin/env python3
"""Runs PyTorch's own distributed_test.py, which is in its wheel, against our backend and against Gloo.

    tests/torch_suite/run.py                          both backends, 2 ranks, every test
    tests/torch_suite/run.py --ranks 2,3,4,8          all of it (about an hour on 2 cores)
    tests/torch_suite/run.py -k all_to_all --backends collective_ops
    tests/torch_suite/run.py --ranks 4 --hosts 2      on two hosts, which are network namespaces (as root)

Prints the counts side by side, and every test that fails, errs, or passes on Gloo but not on ours; exit code
1 where there is one. The suite asks for backends by name: those gates are opened for ours (see `opened`), so
it runs tests that Gloo never sees, such as all-to-all. Ranks are forked from a process that has PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import types
import unittest
from collections.abc import Iterator
from pathlib import Path

ALIAS = "collective_ops_alias"
OURS = ("collective_ops", ALIAS)
# Every rank is one thread's worth: forking needs a process without threads, and cores are few.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "100"}
STATES = ("passed", "failed", "error", "skipped")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run PyTorch's distributed tests on our backend and on Gloo."
    )
    parser.add_argument("--ranks", default="2", help="numbers of ranks, with commas (default 2)")
    parser.add_argument("--backends", default="gloo,collective_ops", help=f"also {ALIAS}")
    parser.add_argument(
        "--hosts", type=int, default=1, help="hosts that the ranks are spread over (default 1)"
    )
    parser.add_argument("-k", dest="pattern", default="", help="only tests whose name contains this")
    parser.add_argument("--json", type=Path, help="write every test's result here")
    parser.add_argument("--verbose", action="store_true", help="show what the ranks print")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # the backend that this very process runs
    options = parser.parse_args()
    if options.one:
        return run_one(options.pattern, options.json)
    results: dict[str, dict[str, dict[str, str]]] = {}
    for ranks in options.ranks.split(","):
        results[ranks] = {name: run(name, ranks, options) for name in options.backends.split(",")}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return report(results)


def run(backend: str, ranks: str, options: argparse.Namespace) -> dict[str, str]:
    """The result of each test, from a process of its own: the suite reads its settings when imported."""
    with tempfile.TemporaryDirectory() as folder, hosts(options.hosts) as variables:
        output = Path(folder, "result.json")
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "BACKEND": backend,
            "WORLD_SIZE": ranks,
            "TEMP_DIR": folder,
            "INIT_METHOD": f"file://{folder}/shared_init_file",
            **variables,
        }
        command = [sys.executable, __file__, "--one", backend, "-k", options.pattern, "--json", str(output)]
        quiet = None if options.verbose else subprocess.DEVNULL
        finished = subprocess.run(command, env=environment, stdout=quiet, stderr=quiet)
        if not output.exists():
            raise SystemExit(f"{backend} with {ranks} ranks: exit code {finished.returncode}, no results")
        return json.loads(output.read_text())


@contextlib.contextmanager
def hosts(count: int) -> Iterator[dict[str, str]]:
    """Makes them; yields what the suite's process has to know."""
    if count == 1:
        yield {}
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
    from network_hosts import NetworkHosts

    with NetworkHosts(count) as network:
        yield {
            "SUITE_HOSTS": ":".join(network.namespace(host) for host in range(count)),
            "COLLECTIVE_OPS_SECRET": os.urandom(16).hex(),
            "GLOO_SOCKET_IFNAME": "eth0",
        }


def enter_host(rank: int) -> None:
    """Moves this process, which is to be a rank, to its host; ranks of a host follow each other."""
    if not (names := os.environ.get("SUITE_HOSTS")):
        return
    namespaces = names.split(":")
    mine = namespaces[rank * len(namespaces) // int(os.environ["WORLD_SIZE"])]
    with open(mine) as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {mine}")


def report(results: dict[str, dict[str, dict[str, str]]]) -> int:
    print(f"{'ranks':>5}  {'backend':<22}" + "".join(f"{state:>9}" for state in STATES) + f"{'tests':>9}")
    bad = 0
    for ranks, by_backend in results.items():
        for backend, tests in by_backend.items():
            counts = [sum(state == wanted for state in tests.values()) for wanted in STATES]
            print(
                f"{ranks:>5}  {backend:<22}" + "".join(f"{count:>9}" for count in counts) + f"{len(tests):>9}"
            )
        for backend in set(by_backend) & set(OURS):
            for name, state in sorted(by_backend[backend].items()):
                on_gloo = by_backend.get("gloo", {}).get(name)
                if state in ("failed", "error") or (on_gloo == "passed" and state != "passed"):
                    print(f"       {backend}: {name}: {state} (gloo: {on_gloo})")
                    bad += 1
    return 1 if bad else 0


def opened(source: str) -> str:
    """The suite's text with its gates by backend name opened for ours."""
    names = repr(("gloo", *OURS))
    source = re.sub(r'BACKEND != "gloo"', f"BACKEND not in {names}", source)
    source = re.sub(r'BACKEND == "gloo"', f"BACKEND in {names}", source)
    source = re.sub(r'BACKEND != "mpi"', f"BACKEND not in {('mpi', *OURS)!r}", source)
    if os.environ["BACKEND"] not in OURS:
        return source
    # DDP's log calls every backend from outside PyTorch "custom".
    logged = 'ddp_logging_data.get("backend_name"), dist.get_backend(group_id)'
    source = source.replace(logged, 'ddp_logging_data.get("backend_name"), "custom"')
    source = source.replace('ddp_logging_data.get("backend_name") == "gloo"', "False")
    return source.replace(
        'require_backend_is_available({"gloo"})', 'require_backend_is_available({"gloo", BACKEND})'
    )


def load_suite() -> types.ModuleType:
    import collective_ops_torch
    import torch
    import torch.distributed as dist
    from torch.testing._internal import common_distributed

    collective_ops_torch.register(ALIAS)
    for names in common_distributed.DistTestCases.backend_feature.values():
        names.update(OURS)
    file = Path(torch.__file__).parent / "testing/_internal/distributed/distributed_test.py"
    suite = types.ModuleType("opened_distributed_test")
    suite.__file__ = str(file)
    sys.modules[suite.__name__] = suite
    exec(compile(opened(file.read_text()), str(file), "exec", dont_inherit=True), suite.__dict__)
    if os.environ["BACKEND"] in OURS:
        for profiled in (suite.PROFILING_SUPPORTED_BACKENDS, suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
            profiled.extend(OURS)
        dist.monitored_barrier = monitored_barrier
    return suite


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False) -> None:
    """As torch.distributed.monitored_barrier, which refuses every backend but Gloo."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    if c10d._rank_not_in_group(group):
        return
    if isinstance(timeout, float):
        timeout = datetime.timedelta(seconds=timeout)
    group = group or dist.group.WORLD
    group.monitored_barrier(timeout or c10d.default_pg_timeout, wait_all_ranks=wait_all_ranks)


class Recorder(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, str] = {}

    def note(self, test: unittest.TestCase, state: str, text: str = "") -> None:
        self.states[test._testMethodName] = state
        print(f"{test._testMethodName}: {state} {text}", flush=True)

    def addSuccess(self, test):
        self.note(test, "passed")

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addFailure(self, test, err):
        self.note(test, "failed", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self.note(test, "error", self._exc_info_to_string(err, test))


def run_one(pattern: str, output: Path) -> int:
    suite = load_suite()
    import torch
    from torch.testing._internal.common_utils import TestCase

    torch.set_num_threads(1)
    # The file itself turns its tests off unless it is run; what it checks is whether we run it.
    TestCase._should_stop_test_suite = lambda self: False

    class TestOnBackend(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *arguments: object, **more: object) -> None:
            enter_host(rank)
            super()._run(rank, *arguments, **more)

    names = [name for name in unittest.defaultTestLoader.getTestCaseNames(TestOnBackend) if pattern in name]
    recorder = Recorder()
    unittest.TestSuite(TestOnBackend(name) for name in names).run(recorder)
    output.write_text(json.dumps(recorder.states))
    return 0


if __name__ == "__main__":
    sys.exit(main())
