"""`collective-ops doctor`: what is installed, what this machine allows, and what the environment will do.

Every line is OK, WARN (works, but slower or not as meant) or FAIL (ranks cannot run), with the next step.
What can be tried is tried and not guessed from settings.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ._doctor_environment import environment
from ._doctor_software import software
from ._doctor_system import system
from ._finding import FAIL, LEVELS, OK, WARN, Finding

FORMAT = 1
COLOURS = {OK: "\x1b[32m", WARN: "\x1b[33m", FAIL: "\x1b[31m"}

EXAMPLES = """\
examples:
  collective-ops doctor                                 exit code 1 where something fails
  collective-ops doctor --json > before.json            keeps what it found
  collective-ops doctor --compare before.json           this environment against that one
  collective-ops doctor --compare cann7.json cann8.json
      two kept ones: measurements in two environments can only be compared if one thing differs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--compare",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="one or two files written by --json: what differs from here, or between them",
    )


def run(options: argparse.Namespace) -> int:
    if options.compare:
        return _run_compare(options)
    found = list(examine())
    worst = max((finding.level for finding in found), key=LEVELS.index)
    if options.json:
        lines = [dataclasses.asdict(finding) for finding in found]
        print(json.dumps({"format": FORMAT, "worst": worst, "findings": lines}, indent=1))
    else:
        print(render(found, coloured=sys.stdout.isatty()))
    return 1 if worst == FAIL else 0


def examine(environ: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """All findings of this machine, in the order in which they are shown. Takes the seconds that importing
    PyTorch takes."""
    environ = os.environ if environ is None else environ
    yield from software(environ)
    yield from system(environ)
    yield from environment(environ)


def render(found: Sequence[Finding], coloured: bool) -> str:
    width = max(len(finding.name) for finding in found)
    lines, section = [], ""
    for finding in found:
        if finding.section != section:
            section = finding.section
            lines += [*([""] if lines else []), section]
        level = finding.level.ljust(4)
        if coloured:
            level = f"{COLOURS[finding.level]}{level}\x1b[0m"
        lines.append(f"  {level}  {finding.name.ljust(width)}  {_printable(finding.value)}")
        if finding.advice:
            lines.append(f"{' ' * (width + 10)}next: {_printable(finding.advice)}")
    counts = [sum(finding.level == level for finding in found) for level in LEVELS]
    lines += ["", f"{counts[0]} OK, {counts[1]} WARN, {counts[2]} FAIL"]
    return "\n".join(lines)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


# --- Comparing two ---------------------------------------------------------------------------------

Difference = tuple[str, str, str]  # name, here, there


def differences(ours: Sequence[Finding], theirs: Sequence[Finding]) -> list[Difference]:
    """What differs, without what varies from minute to minute."""
    first, second = ({f.name: f.value for f in found if not f.varies} for found in (ours, theirs))
    names = [*first, *(name for name in second if name not in first)]
    pairs = [(name, first.get(name, "not set"), second.get(name, "not set")) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def load(path: Path) -> list[Finding]:
    """What --json has written. ValueError where it is something else."""
    try:
        data = json.loads(path.read_text())
        if data["format"] != FORMAT:
            raise ValueError(f"{path}: format {data['format']}, this version reads {FORMAT}")
        return [Finding(**line) for line in data["findings"]]
    except OSError as error:
        raise ValueError(
            f"--compare {path}: {error.strerror}; expected what `collective-ops doctor --json` has printed"
        ) from None
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} was not written by `collective-ops doctor --json`: {error!r}") from None


def verdict(found: Sequence[Difference]) -> str:
    if not found:
        return "Nothing differs."
    if len(found) == 1:
        return "One thing differs: what is measured in the one and in the other can be compared."
    return (
        f"{len(found)} things differ: a comparison of measurements would not say which of them is the cause. "
        "Make all but one equal first."
    )


def _run_compare(options: argparse.Namespace) -> int:
    if len(options.compare) > 2:
        raise ValueError("--compare takes one file, or two")
    first = load(options.compare[0])
    second = load(options.compare[1]) if len(options.compare) == 2 else list(examine())
    titles = [str(path) for path in options.compare] + ["here"]
    found = differences(first, second)
    if options.json:
        rows = [{"name": name, "first": one, "second": other} for name, one, other in found]
        print(json.dumps({"differences": rows, "comparable": len(found) <= 1}))
    else:
        for name, one, other in found:
            print(f"{name}\n    {titles[0]}: {_printable(one)}\n    {titles[1]}: {_printable(other)}")
        print(verdict(found))
    return 0 if len(found) <= 1 else 1
