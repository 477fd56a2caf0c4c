"""The first thing that runs in a rank's process; it becomes the user's command (exec, so the pid stays).

Started as `python -I -S _start_rank.py STATE_DIRECTORY` by the launcher, once per rank, so it imports as
little as it can. It sets DEVICE_ID, sends what the rank prints to the rank's log, tells the launcher its pid,
and asks the kernel to end the rank should the launcher die.
"""

import ctypes
import json
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    state = sys.argv[1]
    with open(os.path.join(state, "start.json"), encoding="utf-8") as file:
        start = json.load(file)
    local_rank, rank = int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"])

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != start["launcher_pid"]:
        sys.exit("the launcher is gone")  # it died before the request above

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(os.path.join(state, "launcher"))
        channel.send(f"{rank} {os.getpid()}".encode())

    log = os.open(start["log"].format(rank=rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)

    if start["cpus"][local_rank]:
        os.sched_setaffinity(0, start["cpus"][local_rank])
    os.environ["DEVICE_ID"] = str(start["device_ids"][local_rank])
    command = start["command"]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        os._exit(126 if isinstance(error, PermissionError) else 127)


main()
