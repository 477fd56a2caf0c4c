"""Measures one case: all contenders in turn, round by round, each for as long as one batch lasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .cases import Case
from .figures import Row
from .rank_group import GroupError, RankGroup

# A setting this many times slower than its product's best one is not measured further in this case.
HOPELESS = 3.0
# One that was this much slower at one size is not tried at the sizes above; nor is one that was hopeless at
# the size before where buffers do not fit side by side, since every trial then takes seconds.
NEVER_AGAIN = 20.0
MAX_CALLS = 20_000


@dataclass(frozen=True)
class Contender:
    name: str
    group: RankGroup
    memory: str  # the group's word for it: shared, private or gloo
    product: str = ""  # of peers
    up_to: int = 2**62  # bytes; it takes no part in larger cases


@dataclass(frozen=True)
class Effort:
    rounds: int = 7
    batch_seconds: float = 0.03
    # Of one contender in one case, about: slow ones get fewer rounds, but two at least.
    contender_seconds: float = 4.0


@dataclass(frozen=True)
class Estimate:
    call_seconds: float
    turn_seconds: float  # of a batch of one call, with making the buffers where that must be done anew


@dataclass
class Bench:
    """The contenders of one number of ranks. Those that fail are left out from then on."""

    contenders: list[Contender]
    effort: Effort
    free_bytes: int
    limit_seconds: Callable[[Case], float | None]
    say: Callable[[str], None]
    _dropped: set[tuple[str, str]] = field(default_factory=set)  # (collective, contender)
    _hopeless: set[tuple[str, str]] = field(default_factory=set)  # the same, at the last size
    _dead: dict[int, str] = field(default_factory=dict)  # by id of the group

    def measure(self, case: Case) -> Row:
        row = Row(case, {})
        limit = [self.limit_seconds(case)]
        estimates: dict[str, Estimate] = {}
        opened: set[tuple[int, str]] = set()
        live = [contender for contender in self.contenders if self._worth_trying(case, contender, row)]
        for contender in live:
            estimate = self._estimate(case, contender, opened, row)
            if estimate is not None:
                estimates[contender.name] = estimate
        chosen = self._choose(case, [c for c in live if c.name in estimates], estimates, row)
        row.products = {c.name: c.product for c in chosen if c.product}
        row.seconds = {c.name: [] for c in chosen}
        for turn in range(self.effort.rounds):
            # There and back, so that no contender always follows the same one.
            for contender in chosen if turn % 2 == 0 else reversed(chosen):
                self._turn(case, contender, estimates[contender.name], turn, row)
        for contender in live:
            self._order(contender, f"drop {contender.memory}", row)
        limit.append(self.limit_seconds(case))
        known = [seconds for seconds in limit if seconds]
        row.limit_seconds = min(known) if known else None
        row.seconds = {name: values for name, values in row.seconds.items() if values}
        return row

    def _worth_trying(self, case: Case, contender: Contender, row: Row) -> bool:
        key = (case.collective, contender.name)
        if case.bytes > contender.up_to:
            return False
        if key in self._dropped or (key in self._hopeless and not self._holds_all(case)):
            row.left_out[contender.name] = "hopeless at a smaller size"
            return False
        return True

    def _holds_all(self, case: Case) -> bool:
        """Whether the buffers of all contenders fit into memory side by side."""
        buffers = len({(id(c.group), c.memory) for c in self.contenders})
        return buffers * case.held_bytes() < self.free_bytes // 2

    def _order(self, contender: Contender, line: str, row: Row) -> float | None:
        """None, with the reason in `row.left_out`, where it failed."""
        dead = self._dead.get(id(contender.group))
        if dead is None:
            try:
                return contender.group.order(line)
            except GroupError as error:
                dead = str(error)
                if error.fatal:
                    self._dead[id(contender.group)] = dead
                    contender.group.kill()
                if contender.name not in row.left_out:
                    self.say(f"left out: {contender.name}: {dead}")
        row.left_out[contender.name] = dead
        return None

    def _open(self, case: Case, contender: Contender, row: Row) -> bool:
        line = f"case {case.collective} {case.dtype} {contender.memory} {case.bytes}"
        return self._order(contender, line, row) is not None

    def _estimate(
        self, case: Case, contender: Contender, opened: set[tuple[int, str]], row: Row
    ) -> Estimate | None:
        """Makes the buffers, has the values checked once, and warms up: MPICH changes after five calls."""
        begin = time.monotonic()
        key = (id(contender.group), contender.memory)
        if key not in opened:
            if not self._open(case, contender, row):
                return None
            if self._order(contender, f"check {contender.memory}", row) is None:
                return None
            opened.add(key)
        calls, seconds = 1, self._trial(contender, 1, row)
        while seconds is not None and seconds < self.effort.batch_seconds / 4 and calls < MAX_CALLS // 4:
            calls *= 4
            seconds = self._trial(contender, calls, row)
        if not self._holds_all(case):
            self._order(contender, f"drop {contender.memory}", row)
            opened.discard(key)
        if seconds is None:
            return None
        call = max(seconds / calls, 1e-9)
        return Estimate(call, call if self._holds_all(case) else time.monotonic() - begin)

    def _trial(self, contender: Contender, calls: int, row: Row) -> float | None:
        """Seconds, the better of two where that is cheap: a rank that the system held up once makes a fast
        contender look slow, and its batches short.
        """
        first = self._order(contender, f"run {contender.memory} {calls}", row)
        if first is None or not self.effort.batch_seconds / 4 <= first < 1:
            return first
        second = self._order(contender, f"run {contender.memory} {calls}", row)
        return None if second is None else min(first, second)

    def _choose(
        self, case: Case, live: Sequence[Contender], estimates: dict[str, Estimate], row: Row
    ) -> list[Contender]:
        """All of ours and of each product the settings that may be its best."""
        best: dict[str, float] = {}
        for contender in live:
            call = estimates[contender.name].call_seconds
            best[contender.product] = min(best.get(contender.product, call), call)
        chosen = []
        for contender in live:
            key = (case.collective, contender.name)
            slower = estimates[contender.name].call_seconds / best[contender.product]
            self._hopeless.discard(key)
            if contender.product and slower > HOPELESS:
                row.left_out[contender.name] = f"about {slower:.0f} times its product's best setting"
                (self._dropped if slower > NEVER_AGAIN else self._hopeless).add(key)
            else:
                chosen.append(contender)
        return chosen

    def _turn(self, case: Case, contender: Contender, estimate: Estimate, turn: int, row: Row) -> None:
        rounds = max(2, self.effort.contender_seconds / estimate.turn_seconds)
        if turn >= rounds or contender.name in row.left_out:
            return
        calls = max(1, min(MAX_CALLS, round(self.effort.batch_seconds / estimate.call_seconds)))
        fresh = not self._holds_all(case)
        if fresh and not (
            self._open(case, contender, row)
            and self._order(contender, f"run {contender.memory} 1", row) is not None
        ):
            return
        seconds = self._order(contender, f"run {contender.memory} {calls}", row)
        if seconds is not None:
            row.seconds[contender.name].append(max(seconds / calls, 1e-9))
        if fresh:
            self._order(contender, f"drop {contender.memory}", row)
