"""Mixture of experts in miniature: tokens travel to the rank of their expert and back, by all-to-all.

Each rank owns one expert and some tokens, and knows only how many of its own tokens go to each expert. A
first all-to-all exchanges these counts, a second one the tokens, a third brings the results home.

    for i in 0 1 2 3; do RANK=$i WORLD_SIZE=4 python examples/token_exchange.py & done; wait
"""

from __future__ import annotations

import numpy as np
from collective_ops import alltoall, finalize, gather, init_hccl, rank, world_size

WIDTH = 64


def expert(tokens: np.ndarray) -> np.ndarray:
    """What this rank's expert makes of a token."""
    return tokens * (rank() + 1)


def through_experts(tokens: np.ndarray, choice: np.ndarray) -> np.ndarray:
    """Each token's result of the expert that `choice` names for it, in the order of `tokens`."""
    order = np.argsort(choice, kind="stable")  # tokens of one expert lie together
    sent = np.bincount(choice, minlength=world_size())
    received = alltoall(None, sent)
    arrived = alltoall(None, tokens[order], out_splits=received.tolist(), in_splits=sent.tolist())
    returned = alltoall(None, expert(arrived), out_splits=sent.tolist(), in_splits=received.tolist())
    results = np.empty_like(returned)
    results[order] = returned
    return results


def main() -> None:
    init_hccl()
    random = np.random.default_rng(rank())
    tokens = random.standard_normal((200 + 10 * rank(), WIDTH)).astype(np.float32)
    choice = random.integers(0, world_size(), len(tokens))
    results = through_experts(tokens, choice)
    expected = tokens * (choice + 1).astype(np.float32)[:, None]
    report = gather(np.array([len(tokens), (results != expected).sum()]))
    if report is not None:
        count, wrong = report.sum(axis=0)
        print(f"{count} tokens through {world_size()} experts and back, {wrong} numbers wrong")
    finalize()


if __name__ == "__main__":
    main()
