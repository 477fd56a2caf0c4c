"""Checks what a launcher or a shell loop has put into the environment.

`import collective_ops` calls `check_environment`, since the user's own `int(os.environ["RANK"])` comes next
and would fail with a text that explains nothing. Pure Python, a few dictionary look-ups.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_LOOP = """    export DEVICE_IDS={devices} WORLD_SIZE={count}
    for i in ${{DEVICE_IDS//,/ }}; do
      RANK=$i DEVICE_ID=$i python {script} &
    done
    wait"""
# Ranks count from 0 whatever the devices are called.
_COUNTING_LOOP = """    export DEVICE_IDS={devices} WORLD_SIZE={count}; rank=0
    for i in ${{DEVICE_IDS//,/ }}; do
      RANK=$rank DEVICE_ID=$i python {script} & rank=$((rank + 1))
    done
    wait"""


class LaunchEnvironmentError(ValueError):
    """RANK, WORLD_SIZE or DEVICE_ID cannot be used; the text says which, why, and what to write instead."""


def check_environment(environ: Mapping[str, str] | None = None, script: str = "") -> None:
    """Raises LaunchEnvironmentError where RANK, LOCAL_RANK, WORLD_SIZE or DEVICE_ID cannot be what was meant.

    Variables that are not set are fine: a program may run alone, or give its rank to `init_hccl` itself.
    """
    environ = os.environ if environ is None else environ
    for name in ("RANK", "DEVICE_ID", "LOCAL_RANK"):
        if _is_list(environ.get(name, "")):
            raise LaunchEnvironmentError(_list_message(name, environ, script or "train.py"))
    numbers = {name: _number(name, environ) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "DEVICE_ID")}
    rank, world_size = numbers["RANK"], numbers["WORLD_SIZE"]
    if world_size is not None and world_size < 1:
        raise LaunchEnvironmentError(f"WORLD_SIZE={world_size}: the number of ranks is at least 1.")
    if rank is not None and world_size is not None and rank >= world_size:
        raise LaunchEnvironmentError(_rank_too_large_message(rank, world_size, environ))


def _is_list(text: str) -> bool:
    return re.search(r"\d\s*[,;\s]\s*\d", text.strip()) is not None


def _number(name: str, environ: Mapping[str, str]) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if re.fullmatch(r"\{\d+\.\.\d+\}", text):
        raise LaunchEnvironmentError(
            f'{name}="{text}": this shell does not know {text}, as sh does not; start the loop with bash, or '
            f"write $(seq {text[1:-1].replace('..', ' ')})"
        )
    if not re.fullmatch(r"[0-9]+", text, re.ASCII):
        raise LaunchEnvironmentError(
            f'{name}="{environ[name]}" is not a number. A launcher sets it; by hand: export {name}='
            f"{8 if name == 'WORLD_SIZE' else 0}."
        )
    return int(text)


def _list_message(name: str, environ: Mapping[str, str], script: str) -> str:
    value = environ[name].strip()
    items = [item for item in re.split(r"[,;\s]+", value) if item]
    loop = _LOOP if items == [str(number) for number in range(len(items))] else _COUNTING_LOOP
    return (
        f'{name}="{value}" is a list of {len(items)} numbers, but every process has one {name}.\n'
        "The usual cause: `for i in $DEVICE_IDS` runs once, with the whole list, as the shell splits at "
        "blanks and not at commas. Split it (bash):\n"
        f"{loop.format(devices=','.join(items), count=len(items), script=script)}\n"
        f"or let the launcher start the ranks: collective-ops run --nproc_per_node {len(items)} {script}"
    )


def _rank_too_large_message(rank: int, world_size: int, environ: Mapping[str, str]) -> str:
    text = f"RANK={rank}, WORLD_SIZE={world_size}: ranks count from 0 to WORLD_SIZE - 1 = {world_size - 1}."
    if environ.get("DEVICE_ID", "").strip() == str(rank):
        text += " RANK equals DEVICE_ID: a device's number is not a rank where the devices do not begin at 0."
    return text + " Is WORLD_SIZE the number of processes that you start?"
