"""The fork server behind rank_pool, and what runs in a rank. Started as a program by RankPool.

It imports once what ranks need, stays single-threaded (a fork copies one thread alone: locks that
another held would stay locked in the child), and forks a process per rank on demand.
Nothing here imports a test; that happens in the rank.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from typing import Any, NoReturn

# A second thread of OpenMP or of a BLAS would make forking unsafe, and eight ranks times several
# threads would fight for few cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

PR_SET_PDEATHSIG = 1
MAX_DESCRIPTORS = 250  # one message carries at most 253
HEADER = struct.Struct("<q")

_result_pipe = -1  # in a rank: where its frames go


def send_message(channel: socket.socket, message: Any, descriptors: list[int] | None = None) -> None:
    data = pickle.dumps(message)
    descriptors = descriptors or []
    if len(descriptors) > MAX_DESCRIPTORS:
        raise ValueError(f"{len(descriptors)} descriptors in one message: at most {MAX_DESCRIPTORS}")
    # The descriptors travel with the header, which is never split.
    socket.send_fds(channel, [HEADER.pack(len(data))], descriptors)
    channel.sendall(data)


def take_frame(buffer: bytearray) -> Any | None:
    """Removes a whole frame from the front of `buffer` and returns its content, or None."""
    if len(buffer) < HEADER.size:
        return None
    (length,) = HEADER.unpack_from(buffer)
    if len(buffer) < HEADER.size + length:
        return None
    content = pickle.loads(bytes(buffer[HEADER.size : HEADER.size + length]))
    del buffer[: HEADER.size + length]
    return content


def report(value: Any) -> None:
    """In a rank: hands `value` to the test, which takes it with Ranks.receive()."""
    _send_frame("report", value)


def _send_frame(kind: str, content: Any) -> None:
    data = pickle.dumps((kind, content))
    view = memoryview(HEADER.pack(len(data)) + data)
    while view:
        view = view[os.write(_result_pipe, view) :]


def _receive_request(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    header, descriptors, _, _ = socket.recv_fds(channel, HEADER.size, MAX_DESCRIPTORS)
    if not header:
        return None
    (length,) = HEADER.unpack(header)
    data = bytearray()
    while len(data) < length:
        part = channel.recv(length - len(data))
        if not part:
            return None
        data += part
    return pickle.loads(bytes(data)), descriptors


def _warm_up(with_torch: bool) -> dict[str, Any]:
    """Imports what ranks will want; what is not installed is left out."""
    loaded = {}
    torch = ["torch", "torch.distributed"] if with_torch else []
    names = ["numpy", "pytest", "hypothesis", *torch, "collective_ops"]
    for name in names:
        try:
            module = importlib.import_module(name)
            loaded[name] = True
        except ImportError:
            loaded[name] = False
            continue
        if name == "torch":
            module.set_num_threads(1)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise SystemExit(f"rank server: {threads} threads after imports, so a fork would not be safe")
    gc.collect()
    gc.freeze()  # ranks share these pages until they write to them
    return loaded


def _fork_ranks(request: dict[str, Any], descriptors: list[int]) -> tuple[int | None, list[int]]:
    """(None, pids) in the server; (its rank, ...) in a rank."""
    server = os.getpid()
    pids = []
    for rank in range(len(request["environments"])):
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
            return rank, pids
        # Here as well as in the rank: whoever comes first, the test can signal the group at once.
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass
        pids.append(pid)
    for descriptor in descriptors:
        os.close(descriptor)
    return None, pids


def _become_rank(rank: int, request: dict[str, Any], descriptors: list[int]) -> None:
    global _result_pipe
    world_size = len(request["environments"])
    os.setpgid(0, 0)
    _result_pipe, output = descriptors[rank], descriptors[world_size + rank]
    os.dup2(output, 1)
    os.dup2(output, 2)
    for descriptor in descriptors:
        if descriptor != _result_pipe:
            os.close(descriptor)
    os.set_inheritable(_result_pipe, False)
    sys.stdout.reconfigure(line_buffering=True)  # a rank that is killed has printed what it printed
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.enable()  # SIGABRT, and crashes, leave the place in the captured output
    os.environ.clear()
    os.environ.update(request["environments"][rank])
    os.chdir(request["directory"])
    sys.path[:] = request["path"]


def _run_rank(call: bytes) -> int:
    """Calls the test's function and sends its value or traceback; the exit code."""
    try:
        function, args = pickle.loads(call)
        if isinstance(function, str):
            module, _, name = function.partition(":")
            function = getattr(importlib.import_module(module), name)
        _send_frame("value", function(*args))
        return 0
    except SystemExit as request:
        if request.code is None or isinstance(request.code, int):
            return request.code or 0
        print(request.code, file=sys.stderr)
        return 1
    except BaseException:  # pytest's outcomes are no Exception
        _send_frame("error", traceback.format_exc())
        return 1


def _leave(code: int) -> NoReturn:
    """Ends a rank as its interpreter would, up to its exit handlers. Modules and C++ statics are left
    standing: taking down PyTorch's costs each rank a quarter of a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _serve(channel: socket.socket) -> tuple[int, dict[str, Any], list[int]] | None:
    """Serves until the test session ends (None), or returns in a new rank with what that has to do."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    alive: set[int] = set()
    while True:
        readable, _, _ = select.select([channel, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            for pid in list(alive):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    alive.discard(pid)
                    send_message(channel, ("ended", (pid, os.waitstatus_to_exitcode(status))))
        if channel not in readable:
            continue
        received = _receive_request(channel)
        if received is None:
            for pid in alive:
                os.killpg(pid, signal.SIGKILL)
            return None
        rank, pids = _fork_ranks(*received)
        if rank is not None:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(woken)
            os.close(wake)
            return rank, *received
        alive.update(pids)
        send_message(channel, ("started", pids))


def main() -> int:
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test session ends us
    loaded = _warm_up(sys.argv[2] == "torch")
    send_message(channel, ("ready", loaded))
    task = _serve(channel)
    if task is None:
        return 0
    channel.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank, request, descriptors = task
    _become_rank(rank, request, descriptors)
    _leave(_run_rank(request["call"]))


if __name__ == "__main__":
    # report() called by a test's module must meet this module's state, not a second copy's.
    sys.modules["rank_server"] = sys.modules["__main__"]
    sys.exit(main())
