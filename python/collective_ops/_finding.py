"""One line of `collective-ops doctor`."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARN, FAIL = "OK", "WARN", "FAIL"
LEVELS = (OK, WARN, FAIL)  # from good to bad


@dataclass(frozen=True)
class Finding:
    section: str  # software, system, environment
    name: str
    level: str  # of LEVELS
    value: str
    advice: str = ""  # the next step
    varies: bool = False  # from minute to minute, so that a comparison leaves it out
