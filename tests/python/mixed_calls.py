"""Random collectives one after the other, the same plan on all ranks, each result compared with the oracle.

Groups of random ranks come and go; calls on them go on beside those of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import collective_ops as ops
import numpy as np
import oracle

SIZES = (0, 1, 3, 16, 100, 1000, 5000)
LARGE = 20_000
REDUCTIONS = ("allreduce", "reduce", "reducescatter", "reducescatter_counts")
MOVES = ("broadcast", "allgather", "allgather_uneven", "gather", "gather_uneven", "scatter")
MOVES += ("scatter_uneven", "alltoall", "alltoall_splits")
KINDS = (*REDUCTIONS, *MOVES, "barrier")


def typed(values: np.ndarray, dtype: str) -> Any:
    """As a torch tensor where numpy has no such type; the same memory."""
    if oracle.storage(dtype).name == dtype:
        return values
    import torch

    name = {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype)
    return torch.from_numpy(values).view(getattr(torch, name))


@dataclass
class Step:
    kind: str
    dtype: str
    op: str
    root: int
    first: int  # element of the pool
    count: int
    shared: bool
    asynchronous: bool


class Mixed:
    def __init__(self, seed: int, kinds: tuple[str, ...] = KINDS, groups: int = 4) -> None:
        self.me, self.kinds, self.most_groups = ops.rank(), kinds, groups
        self.plan = np.random.default_rng(seed)
        self.pool = {
            dtype: [
                oracle.random_array(np.random.default_rng([seed, r]), dtype, 3 * LARGE)
                if dtype not in oracle.FLOAT8
                else np.random.default_rng([seed, r]).integers(0, 120, 3 * LARGE).astype(np.uint8)
                for r in range(ops.world_size())
            ]
            for dtype in ops.data_types
        }
        self.memory = {dtype: ops._core.SharedArray([LARGE], dtype) for dtype in self.pool}
        world = list(range(ops.world_size()))
        self.groups: list[tuple[list[int], Any]] = [(world, None)]  # ranks of the world, and the group
        self.made = 0

    def step(self) -> str | None:
        """One call; what is wrong with its result, or None."""
        plan = self.plan
        if self.most_groups and plan.random() < 0.004:
            self._exchange_group()
        # All ranks draw the same numbers, those that are not in the group too.
        at = 0 if plan.random() < 0.4 else int(plan.integers(len(self.groups)))
        ranks, group = self.groups[at]
        kind = str(plan.choice(self.kinds))
        dtype = str(plan.choice(oracle_types() if kind in REDUCTIONS else list(self.pool)))
        choices = [op for op in oracle.ops_of(dtype) if op != "prod" or dtype not in oracle.FLOATS]
        step = Step(
            kind,
            dtype,
            str(plan.choice(choices)),
            int(plan.integers(len(ranks))),
            int(plan.integers(LARGE)),
            LARGE if plan.random() < 0.002 else int(plan.choice(SIZES)),
            bool(plan.random() < 0.3),
            bool(plan.random() < 0.2),
        )
        if self.me not in ranks:
            return None
        if kind == "barrier":
            ops.barrier(group=group)
            return None
        pairs = self._made_call(step, ranks, group)
        for result, expected in pairs:
            if result.tobytes() != expected.tobytes():
                return f"{step} of ranks {ranks}: {result} is not {expected}"
        return None

    def close(self) -> None:
        """Leaves all groups but that of all ranks."""
        for _, group in self.groups[1:]:
            if group is not None:
                group.close()
        del self.groups[1:]

    def _exchange_group(self) -> None:
        size = int(self.plan.integers(2, ops.world_size() + 1))
        ranks = [int(r) for r in self.plan.permutation(ops.world_size())[:size]]
        self.made += 1
        if len(self.groups) > self.most_groups:
            _, old = self.groups.pop(1)
            if old is not None:
                old.close()
        group = ops.new_group(ranks, name=f"random {self.made}") if self.me in ranks else None
        self.groups.append((ranks, group))

    def _placed(self, values: np.ndarray, step: Step) -> tuple[Any, np.ndarray]:
        """The array of a call, and the memory behind it: a copy of `values`, private or shared."""
        if not step.shared or len(values) > LARGE:
            memory = values.copy()
            return typed(memory, step.dtype), memory
        array = self.memory[step.dtype].slice(0, len(values))
        memory = np.asarray(array)
        memory[:] = values
        return array, memory

    def _made_call(self, step: Step, ranks: list[int], group: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """(result, expected) of what this rank gets."""
        n, me = len(ranks), ranks.index(self.me)
        inputs = [self.pool[step.dtype][r] for r in ranks]
        made = getattr(self, f"_{step.kind.partition('_')[0]}")(step, inputs, n, me, group)
        work, pairs = made
        if step.asynchronous:
            work.wait()
        return pairs

    def _allreduce(self, step: Step, inputs: list, n: int, me: int, group: Any) -> Any:
        parts = [values[step.first : step.first + step.count] for values in inputs]
        array, memory = self._placed(parts[me], step)
        work = ops.allreduce(array, step.op, step.asynchronous, group=group)
        return work, [(memory, oracle.reduce(parts, step.op, step.dtype))]

    def _reduce(self, step: Step, inputs: list, n: int, me: int, group: Any) -> Any:
        parts = [values[step.first : step.first + step.count] for values in inputs]
        array, memory = self._placed(parts[me], step)
        work = ops.reduce(array, step.root, step.op, step.asynchronous, group=group)
        return work, [(memory, oracle.reduce(parts, step.op, step.dtype) if me == step.root else parts[me])]

    def _reducescatter(self, step: Step, inputs: list, n: int, me: int, group: Any) -> Any:
        counts = self._counts(step, n)
        parts = [values[step.first : step.first + sum(counts)] for values in inputs]
        array, _ = self._placed(parts[me], step)
        out = np.zeros(counts[me], parts[me].dtype)
        work = ops.reducescatter(
            array,
            step.op,
            typed(out, step.dtype),
            step.asynchronous,
            counts=counts if step.kind.endswith("counts") else None,
            group=group,
        )
        begin = sum(counts[:me])
        own = [part[begin : begin + counts[me]] for part in parts]
        return work, [(out, oracle.reduce(own, step.op, step.dtype))]

    def _broadcast(self, step: Step, inputs: list, n: int, me: int, group: Any) -> Any:
        parts = [values[step.first : step.first + step.count] for values in inputs]
        array, memory = self._placed(parts[me], step)
        work = ops.broadcast(array, step.root, step.asynchronous, group=group)
        return work, [(memory, parts[step.root])]

    def _allgather(self, step: Step, inputs: list, n: int, me: int, group: Any) -> Any:
        parts = self._parts(step, inputs, n)
        array, _ = self._placed(parts[me], step)
        if step.kind.endswith("uneven"):
            outs = [np.zeros_like(part) for part in parts]
            out: Any = [typed(each, step.dtype) for each in outs]
            pairs = list(zip(outs, parts, strict=True))
        else:
            whole = np.zeros(sum(map(len, parts)), parts[0].dtype)
            out, pairs = typed(whole, step.dtype), [(whole, np.concatenate(parts))]
        return ops.allgather(array, out, step.asynchronous, group=group), pairs

    def _gather(self, step: Step, inputs: list, n: int, me: int, group: Any) -> Any:
        parts = self._parts(step, inputs, n)
        array, _ = self._placed(parts[me], step)
        uneven, out, pairs = step.kind.endswith("uneven"), None, []
        if me == step.root:
            outs = [np.zeros_like(part) for part in parts]
            out, pairs = [typed(each, step.dtype) for each in outs], list(zip(outs, parts, strict=True))
        return ops.gather(array, out, step.root, step.asynchronous, uneven=uneven, group=group), pairs

    def _scatter(self, step: Step, inputs: list, n: int, me: int, group: Any) -> Any:
        parts = self._parts(step, [inputs[step.root]] * n, n)
        array, memory = self._placed(np.zeros_like(parts[me]), step)
        given = [typed(part.copy(), step.dtype) for part in parts] if me == step.root else None
        uneven = step.kind.endswith("uneven")
        work = ops.scatter(array, given, step.root, step.asynchronous, uneven=uneven, group=group)
        return work, [(memory, parts[me])]

    def _alltoall(self, step: Step, inputs: list, n: int, me: int, group: Any) -> Any:
        uneven = step.kind.endswith("splits")

        def rows(source: int, destination: int) -> int:
            return (step.count // n) * ((source + 2 * destination) % 3 if uneven else 1)

        def part(source: int, destination: int) -> np.ndarray:
            begin = step.first + sum(rows(source, before) for before in range(destination))
            return inputs[source][begin : begin + rows(source, destination)]

        sends, receives = [rows(me, r) for r in range(n)], [rows(r, me) for r in range(n)]
        array, _ = self._placed(np.concatenate([part(me, r) for r in range(n)]), step)
        out = np.zeros(sum(receives), inputs[0].dtype)
        splits = (receives, sends) if uneven else (None, None)
        work = ops.alltoall(typed(out, step.dtype), array, *splits, step.asynchronous, group=group)
        return work, [(out, np.concatenate([part(r, me) for r in range(n)]))]

    @staticmethod
    def _counts(step: Step, n: int) -> list[int]:
        even = step.count // n
        return [even * (r % 3) if step.kind.endswith(("counts", "uneven")) else even for r in range(n)]

    def _parts(self, step: Step, inputs: list, n: int) -> list[np.ndarray]:
        """What each rank gives, or gets."""
        counts = self._counts(step, n)
        return [values[step.first + r : step.first + r + counts[r]] for r, values in enumerate(inputs)]


def oracle_types() -> list[str]:
    return [dtype for dtype in ops.data_types if dtype not in oracle.FLOAT8]
