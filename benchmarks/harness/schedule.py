"""Measures one case: all contenders in turn, round by round, each for as long as one batch lasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .cases import Case
from .figures import Row
from .rank_group import GroupError, RankGroup

# A setting this many times slower than its product's best one is not measured further in this case.
HOPELESS = 2.0
# One that was this much slower at one size is not tried at the sizes above.
NEVER_AGAIN = 20.0
MAX_CALLS = 20_000


@dataclass(frozen=True)
class Contender:
    name: str
    group: RankGroup
    memory: str  # the group's word for it: shared, private or gloo
    product: str = ""  # of peers


@dataclass(frozen=True)
class Effort:
    rounds: int = 7
    batch_seconds: float = 0.03
    # Of one contender in one case, about: slow ones get fewer rounds, but two at least.
    contender_seconds: float = 4.0


@dataclass
class Bench:
    """The contenders of one number of ranks. Those that fail are left out from then on."""

    contenders: list[Contender]
    effort: Effort
    free_bytes: int
    limit_seconds: Callable[[Case], float | None]
    say: Callable[[str], None]
    _dropped: set[tuple[str, str]] = field(default_factory=set)  # (collective, contender)
    _dead: dict[int, str] = field(default_factory=dict)  # by id of the group

    def measure(self, case: Case) -> Row:
        row = Row(case, {})
        live = self._prepare(case, row)
        limit = [self.limit_seconds(case)]
        estimates = self._estimate(case, live, row)
        chosen = self._choose(case, live, estimates, row)
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

    def _prepare(self, case: Case, row: Row) -> list[Contender]:
        """Buffers made, values checked once: who may take part."""
        live, opened = [], set()
        for contender in self.contenders:
            if (case.collective, contender.name) in self._dropped:
                row.left_out[contender.name] = "hopeless at a smaller size"
                continue
            key = (id(contender.group), contender.memory)
            if key in opened or (
                self._open(case, contender, row)
                and self._order(contender, f"check {contender.memory}", row) is not None
            ):
                opened.add(key)
                live.append(contender)
                if not self._holds_all(case):
                    self._order(contender, f"drop {contender.memory}", row)
                    opened.discard(key)
        return live

    def _estimate(self, case: Case, live: Sequence[Contender], row: Row) -> dict[str, float]:
        """Seconds per call, roughly, after warming up: MPICH changes its way after the fifth call."""
        estimates: dict[str, float] = {}
        for contender in live:
            if not self._holds_all(case) and not self._open(case, contender, row):
                continue
            calls, seconds = 1, self._order(contender, f"run {contender.memory} 1", row)
            while seconds is not None and seconds < self.effort.batch_seconds / 4 and calls < MAX_CALLS // 4:
                calls *= 4
                seconds = self._order(contender, f"run {contender.memory} {calls}", row)
            if not self._holds_all(case):
                self._order(contender, f"drop {contender.memory}", row)
            if seconds is not None:
                estimates[contender.name] = max(seconds / calls, 1e-9)
        return estimates

    def _choose(
        self, case: Case, live: Sequence[Contender], estimates: dict[str, float], row: Row
    ) -> list[Contender]:
        """All of ours and of each product the settings that may be its best."""
        best: dict[str, float] = {}
        for contender in live:
            if contender.product and contender.name in estimates:
                product = contender.product
                best[product] = min(best.get(product, float("inf")), estimates[contender.name])
        chosen = []
        for contender in live:
            if contender.name not in estimates:
                continue
            slower = estimates[contender.name] / best.get(contender.product, float("inf"))
            if slower > NEVER_AGAIN:
                self._dropped.add((case.collective, contender.name))
            if slower > HOPELESS:
                row.left_out[contender.name] = f"about {slower:.0f} times its product's best setting"
            else:
                chosen.append(contender)
        return chosen

    def _turn(self, case: Case, contender: Contender, estimate: float, turn: int, row: Row) -> None:
        if turn >= max(2, self.effort.contender_seconds / estimate) or contender.name in row.left_out:
            return
        calls = max(1, min(MAX_CALLS, round(self.effort.batch_seconds / estimate)))
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
