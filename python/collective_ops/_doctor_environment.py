"""What the environment variables will do, for `collective-ops doctor`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from . import _core
from ._finding import FAIL, OK, WARN, Finding
from ._hccl_variables import HCCL_VARIABLES
from .errors import InvalidArgumentError

SECTION = "environment"
# What jobs over many hosts are advised to set, in seconds; and from how many ranks on we speak of them.
ADVISED_TIMEOUTS = {"HCCL_CONNECT_TIMEOUT": 1800, "HCCL_EXEC_TIMEOUT": 7200}
MANY_RANKS = 16
# What this library takes, which is wider than HCCL.
OWN_TIMEOUTS = {"HCCL_CONNECT_TIMEOUT": (1, 7200), "HCCL_EXEC_TIMEOUT": (0, 2147483647)}
CHOICES = {
    "COLLECTIVE_OPS_PATH": ("auto", "staged", "direct", "read"),
    "COLLECTIVE_OPS_ALGORITHM": tuple(
        "auto direct one_shot two_shot staged read ring tree recursive_doubling halving_doubling nhr"
        " double_tree bruck pairwise linear arrival push".split()
    ),
}
# What counts between hosts alone.
HOSTS = (
    "HCCL_IF_IP",
    "HCCL_SOCKET_IFNAME",
    "HCCL_SOCKET_FAMILY",
    "HCCL_IF_BASE_PORT",
    "HCCL_HOST_SOCKET_PORT_RANGE",
    "COLLECTIVE_OPS_SECRET",
    "COLLECTIVE_OPS_SECRET_FILE",
    "COLLECTIVE_OPS_INSECURE",
)
FLAGS = ("0", "1", "false", "true", "off", "on")


def environment(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name in OWN_TIMEOUTS:
        yield timeout(name, environ)
    for name in sorted(environ):
        if name in OWN_TIMEOUTS:
            continue
        if name in HOSTS:
            continue
        if name.startswith(("HCCL_", "HCOMM_", "P2P_HCCL_")):
            yield hccl(name, environ[name])
        elif name.startswith("COLLECTIVE_OPS_"):
            yield own(name, environ[name])
    yield from ranks(environ)
    yield from hosts(environ)


def timeout(name: str, environ: Mapping[str, str]) -> Finding:
    """The seconds in effect, whether they can be used, and whether they suit a large job."""
    given = environ.get(name, "")
    low, high = OWN_TIMEOUTS[name]
    text = given or next(default for known, default, _ in _core.environment_variables() if known == name)
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        advice = f"whole seconds from {low} to {high}, for large jobs {ADVISED_TIMEOUTS[name]}"
        return Finding(SECTION, name, FAIL, f"{given!r} cannot be used", advice)
    seconds = int(text)
    value = f"{seconds} s" + ("" if given else ", the default") + (", waits for ever" if seconds == 0 else "")
    advised = ADVISED_TIMEOUTS[name]
    hccl_low = HCCL_VARIABLES[name].low or 0
    if seconds < hccl_low:
        advice = f"HCCL on Ascend devices takes {hccl_low} or more; for large jobs: export {name}={advised}"
        return Finding(SECTION, name, WARN, value, advice)
    world_size = environ.get("WORLD_SIZE", "").strip()
    large = world_size.isdigit() and int(world_size) >= MANY_RANKS
    if 0 < seconds < advised:
        advice = f"for large jobs: export {name}={advised}"
        return Finding(SECTION, name, WARN if large or given else OK, value, advice)
    return Finding(SECTION, name, OK, value)


def hccl(name: str, value: str) -> Finding:
    variable = HCCL_VARIABLES.get(name)
    if variable is None:
        return _unknown(name, value, HCCL_VARIABLES)
    problem = variable.problem(value)
    if problem:
        return Finding(
            SECTION, name, WARN, f"{value!r}: {problem}", f"unset it for the default, {variable.default!r}"
        )
    return Finding(SECTION, name, OK, f"{value}; read by HCCL on Ascend devices, without effect between CPUs")


def own(name: str, value: str) -> Finding:
    known = {variable: meaning for variable, _, meaning in _core.environment_variables()}
    if name not in known:
        return _unknown(name, value, known)
    if not value:
        return Finding(SECTION, name, OK, "empty, as if not set")
    if name in CHOICES:
        if value not in CHOICES[name]:
            return Finding(
                SECTION, name, FAIL, f"{value!r} cannot be used", f"one of {', '.join(CHOICES[name])}"
            )
        if value != "auto":
            return Finding(
                SECTION, name, WARN, f"{value}: forced, for tests", f"unset {name}: the choice is measured"
            )
    if name == "COLLECTIVE_OPS_TRACE" and value not in FLAGS:
        return Finding(SECTION, name, FAIL, f"{value!r} cannot be used", "0 or 1")
    if name == "COLLECTIVE_OPS_TRACE_DIR" and not (Path(value).is_dir() and os.access(value, os.W_OK)):
        return Finding(
            SECTION, name, FAIL, f"{value} is no folder that can be written to", f"mkdir -p {value}"
        )
    return Finding(SECTION, name, OK, f"{value} ({known[name]})")


def _unknown(name: str, value: str, known: Iterable[str]) -> Finding:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    advice = f"did you mean {near[0]}?" if near else "docs/tuning.md lists ours; unset it if it is not needed"
    return Finding(SECTION, name, WARN, f"{value!r}: no such variable is known", advice)


def ranks(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Of the launcher's variables those that a shell should not hold."""
    rank = environ.get("RANK", "")
    if rank and not environ.get("LOCAL_WORLD_SIZE"):
        advice = "unset RANK, unless a launcher set it: all that this shell starts would be that rank"
        yield Finding(SECTION, "RANK", WARN, rank, advice)
    threads = environ.get("OMP_NUM_THREADS", "")
    value = threads or "not set: `collective-ops run` sets it to the cores per rank, a shell loop does not"
    yield Finding(SECTION, "OMP_NUM_THREADS", OK, value)


def hosts(environ: Mapping[str, str]) -> Iterator[Finding]:
    """How ranks of this host would meet those of others. Reads this process's environment."""
    given = ", ".join(f"{name}={environ[name]}" for name in HOSTS[:5] if environ.get(name))
    try:
        addresses = _core.own_addresses()
    except InvalidArgumentError as error:
        yield Finding(SECTION, "other hosts", FAIL, str(error), "see docs/hosts.md")
    else:
        shown = f"told {', '.join(addresses)}" + (f" ({given})" if given else "")
        advice = "" if addresses else "only loopback is up: ranks on other hosts cannot reach this one"
        yield Finding(
            SECTION, "other hosts", OK if addresses else WARN, shown if addresses else "none", advice
        )
    try:
        kind, origin = _core.secret()
    except InvalidArgumentError as error:
        yield Finding(SECTION, "secret", FAIL, str(error), "see docs/hosts.md")
        return
    if kind == "shared":
        yield Finding(SECTION, "secret", OK, f"from {origin}")
    elif kind == "insecure":
        advice = "only on a network that nobody else can reach; docs/hosts.md"
        yield Finding(SECTION, "secret", WARN, f"none ({origin}): whoever reaches a port can join", advice)
    elif environ.get("LOCAL_WORLD_SIZE") and environ["LOCAL_WORLD_SIZE"] != environ.get("WORLD_SIZE"):
        advice = "export COLLECTIVE_OPS_SECRET=$(openssl rand -hex 32) to all; docs/hosts.md"
        yield Finding(SECTION, "secret", FAIL, "none, and the ranks are on several hosts", advice)
    else:
        yield Finding(SECTION, "secret", OK, "none; ranks of one host need none")
