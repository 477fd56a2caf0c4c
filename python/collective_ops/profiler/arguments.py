"""The switches of a profile: flags for any argparse program, and the object they become. Names, defaults and
meaning are those that users of ModelLink and MindSpeed know; docs/profiling.md lists them."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

LEVELS = ("level0", "level1", "level2")
EXPORT_TYPES = ("text", "db")
ALL_RANKS = -1
# What a rank may write before recording stops: 4 GiB, four times what Perfetto opens with comfort.
DEFAULT_MAX_SIZE = 4 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class ProfileConfig:
    """What is recorded, and where it goes. `step_end` is not recorded; None: until the program ends.

    `steps_interval` N: of these steps the first, and then every N-th. `ranks` with -1 in it: all.
    `max_size`: bytes that one rank may write as raw data; recording stops before a step would pass it.
    """

    enable_profiling: bool = False
    profiling_dir: str = "./profile_dir"
    step_start: int = 10
    step_end: int | None = 12
    steps_interval: int = 1
    ranks: tuple[int, ...] = (ALL_RANKS,)
    level: str = "level1"
    with_cpu: bool = False
    with_stack: bool = False
    with_memory: bool = False
    record_shapes: bool = False
    export_type: str = "text"
    max_size: int = DEFAULT_MAX_SIZE
    clean: bool = False
    gather: bool = False

    def records(self, step: int) -> bool:
        """Whether this step is one of those to record."""
        if step < self.step_start or (self.step_end is not None and step >= self.step_end):
            return False
        return (step - self.step_start) % self.steps_interval == 0

    def is_over(self, step: int) -> bool:
        """Whether neither this step nor a later one is recorded."""
        return self.step_end is not None and step >= self.step_end

    def selects(self, rank: int) -> bool:
        return ALL_RANKS in self.ranks or rank in self.ranks


def parse_ranks(values: str | int | Iterable[str | int]) -> tuple[int, ...]:
    """Ranks as users write them: `-1` (all), `0 1 2`, `0,1,2`, `0-15`, and mixes of these; sorted, each once.

    Raises ValueError, which names the part that is no rank.
    """
    if isinstance(values, str | int):
        values = [values]
    ranks: set[int] = set()
    for value in values:
        for part in re.split(r"[,\s]+", str(value).strip("[]() ")):
            if not part:
                continue
            found = re.fullmatch(r"(-1)|(\d+)(?:-(\d+))?", part)
            if found is None:
                raise ValueError(f"ranks: '{part}' is neither a rank, nor -1 for all, nor a range as 0-15")
            if found[1]:
                ranks.add(ALL_RANKS)
                continue
            first, last = int(found[2]), int(found[3] or found[2])
            if last < first:
                raise ValueError(f"ranks: the range {part} ends before it begins")
            if last - first > 1_000_000:
                raise ValueError(f"ranks: the range {part} has more ranks than any job")
            ranks.update(range(first, last + 1))
    if not ranks:
        raise ValueError("ranks: none is given; -1 selects all")
    return tuple(sorted(ranks))


def parse_size(text: str | int) -> int:
    """Bytes of `800M`, `4G`, `4GiB` or a plain number; units are powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", str(text).strip(), re.IGNORECASE)
    if found is None or (size := int(float(found[1]) * _UNITS[found[2].upper()])) <= 0:
        raise ValueError(f"size: '{text}' is no size above zero, such as 800M or 4G")
    return size


def parse_switch(value: str | bool | None) -> bool:
    """`True`, `False`, `1`, `0`, `yes`, `no`, `on`, `off`, in any case; a flag without a value is on."""
    if value is None or isinstance(value, bool):
        return bool(value)
    known = {"true": True, "1": True, "yes": True, "on": True}
    known |= {"false": False, "0": False, "no": False, "off": False}
    if value.strip().lower() not in known:
        raise ValueError(f"'{value}' is neither True nor False")
    return known[value.strip().lower()]


class _Switch(argparse.Action):
    """Switches profiling on, alone or with a value."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, value: Any, *_option: Any) -> None:
        setattr(namespace, self.dest, True if value is None or value == [] else value)


def _checked(parse: Any) -> Any:
    """`parse` as argparse's `type`: its error text reaches the user."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _at_least(least: int) -> Any:
    def convert(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least {least}")
        return int(text)

    return convert


# Flag, and what argparse gets for it. Defaults are None, so that what was given can be told from what was not
# (a program that has some of these flags itself keeps its own); ProfileConfig has the values.
_FLAGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--profile", {"action": _Switch, "nargs": 0, "help": "record a profile"}),
    (
        "--profile-step-start",
        {"type": _at_least(0), "metavar": "N", "help": "first step recorded (default 10)"},
    ),
    (
        "--profile-step-end",
        {
            "type": _at_least(-1),
            "metavar": "N",
            "help": "first step not recorded any more (default 12; -1: to the end)",
        },
    ),
    (
        "--profile-ranks",
        {"nargs": "+", "metavar": "R", "help": "-1 (all, the default), 0 1 2, 0,1,2 or 0-15"},
    ),
    (
        "--profile-level",
        {
            "choices": LEVELS,
            "help": "level0: steps and communication; level1 (default): operators too; "
            "level2: shapes and waiting per peer too",
        },
    ),
    ("--profile-with-cpu", {"action": "store_true", "help": "operators as the host issued them"}),
    ("--profile-with-stack", {"action": "store_true", "help": "call stacks"}),
    ("--profile-with-memory", {"action": "store_true", "help": "memory of operators and allocator"}),
    ("--profile-record-shapes", {"action": "store_true", "help": "shapes of the operators' inputs"}),
    ("--profile-save-path", {"metavar": "DIR", "help": "default ./profile_dir"}),
    (
        "--profile-export-type",
        {"choices": EXPORT_TYPES, "help": "text (default: CSV and JSON) or db (SQLite)"},
    ),
    (
        "--profile-max-size",
        {
            "type": _checked(parse_size),
            "metavar": "SIZE",
            "help": "of one rank's raw data, such as 800M; recording stops before it is passed (default 4G)",
        },
    ),
    ("--profile-clean", {"action": "store_true", "help": "first remove what earlier runs left in DIR"}),
    ("--profile-gather", {"action": "store_true", "help": "bring all ranks' profiles to rank 0's host"}),
    (
        "--enable_profiling",
        {"action": _Switch, "nargs": "?", "type": _checked(parse_switch), "metavar": "True"},
    ),
    (
        "--profiling_enable",
        {"action": _Switch, "nargs": "?", "type": _checked(parse_switch), "metavar": "True"},
    ),
    ("--profiling_dir", {"metavar": "DIR", "help": "as --profile-save-path"}),
    (
        "--profiling_steps",
        {"type": _at_least(1), "metavar": "N", "help": "record one step of every N"},
    ),
)


def add_profile_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the flags of a profile to any parser; flags that it has already stay its own. Returns it."""
    group = parser.add_argument_group("profile")
    known = parser._option_string_actions
    for flag, options in _FLAGS:
        if flag in known:
            continue
        settings = dict(options)
        if settings.get("action") == "store_true":
            settings["default"] = False
        elif settings.get("nargs") == 0:
            settings["default"] = False
        group.add_argument(flag, **settings)
    return parser


# Field of the config: the attributes that may hold it, the first one that is set wins.
_ATTRIBUTES: Mapping[str, Sequence[str]] = {
    "profiling_dir": ("profile_save_path", "profiling_dir"),
    "step_start": ("profile_step_start",),
    "step_end": ("profile_step_end",),
    "steps_interval": ("profiling_steps",),
    "ranks": ("profile_ranks",),
    "level": ("profile_level",),
    "with_cpu": ("profile_with_cpu",),
    "with_stack": ("profile_with_stack",),
    "with_memory": ("profile_with_memory",),
    "record_shapes": ("profile_record_shapes",),
    "export_type": ("profile_export_type",),
    "max_size": ("profile_max_size",),
    "clean": ("profile_clean",),
    "gather": ("profile_gather",),
}
_SWITCHES = ("profile", "enable_profiling", "profiling_enable")


def config_of(args: Any) -> ProfileConfig:
    """The config in a ProfileConfig, in parsed arguments, or in any object with such attributes.

    Raises ValueError: a value that cannot be.
    """
    if isinstance(args, ProfileConfig):
        return checked(replace(args, ranks=parse_ranks(args.ranks)))
    values: dict[str, Any] = {
        "enable_profiling": any(parse_switch(getattr(args, name, None)) for name in _SWITCHES)
    }
    for field, names in _ATTRIBUTES.items():
        given = [value for name in names if (value := getattr(args, name, None)) is not None]
        if given:
            values[field] = given[0]
    if "steps_interval" in values and "step_end" not in values:  # an interval alone has no end
        values["step_end"] = None
        values.setdefault("step_start", int(values["steps_interval"]))
    if values.get("step_end") == -1:
        values["step_end"] = None
    if "step_start" in values and "step_end" not in values:
        values["step_end"] = int(values["step_start"]) + 2
    if "ranks" in values:
        values["ranks"] = parse_ranks(values["ranks"])
    if "max_size" in values:
        values["max_size"] = parse_size(values["max_size"])
    return checked(ProfileConfig(**values))


def checked(config: ProfileConfig) -> ProfileConfig:
    """The config, or a ValueError that names the flag."""
    for field in fields(config):
        if field.name in ("step_start", "steps_interval") and not isinstance(
            getattr(config, field.name), int
        ):
            raise ValueError(f"profile: {field.name} is {getattr(config, field.name)!r}, no whole number")
    if config.step_start < 0:
        raise ValueError(f"--profile-step-start {config.step_start}: steps count from 0")
    if config.step_end is not None and config.step_end <= config.step_start:
        raise ValueError(
            f"--profile-step-end {config.step_end} is not after --profile-step-start {config.step_start}: "
            f"the end is not recorded, so for step {config.step_start} alone give {config.step_start + 1}"
        )
    if config.steps_interval < 1:
        raise ValueError(
            f"--profiling_steps {config.steps_interval}: one step of every N needs N of at least 1"
        )
    if config.level not in LEVELS:
        raise ValueError(f"--profile-level {config.level}: there are {', '.join(LEVELS)}")
    if config.export_type not in EXPORT_TYPES:
        raise ValueError(f"--profile-export-type {config.export_type}: there are {', '.join(EXPORT_TYPES)}")
    if not str(config.profiling_dir).strip():
        raise ValueError("--profile-save-path is empty")
    return config


def check_ranks(config: ProfileConfig, world_size: int) -> str:
    """A warning that names the ranks which this job has not; "" where there are none.

    Raises ValueError where none of the ranks given is in the job: nothing would be recorded.
    """
    if ALL_RANKS in config.ranks:
        return ""
    beyond = [rank for rank in config.ranks if rank >= world_size]
    if len(beyond) == len(config.ranks):
        raise ValueError(
            f"--profile-ranks {named(beyond)}: the job has the ranks 0 to {world_size - 1}; "
            "nothing would be recorded"
        )
    if beyond:
        return f"--profile-ranks: {named(beyond)} not in this job, which has the ranks 0 to {world_size - 1}"
    return ""


def named(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"


def check_writable(directory: Path) -> None:
    """Makes the directory and writes into it. Raises ValueError, which says why that cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".writable.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"--profile-save-path {directory}: {error.strerror or error}; "
            "give a directory that this user may write"
        ) from None
