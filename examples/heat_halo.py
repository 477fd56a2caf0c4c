"""Heat along a rod, cut in pieces: neighbour ranks put their border cells into each other's memory.

The pieces lie in symmetric memory (torch.distributed._symmetric_memory, here on CPUs): a rank writes into its
neighbour's piece as into its own, and signals that it has. No message is copied, no rank waits for any but
its neighbours. Rank 0 compares the result with that of one process.

    torchrun --standalone --nproc-per-node 4 examples/heat_halo.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

CELLS, STEPS = 3000, 400


def start() -> torch.Tensor:
    """Temperatures of the whole rod, with a cold cell at either end."""
    rod = torch.zeros(CELLS + 2, dtype=torch.float64)
    rod[CELLS // 3 : CELLS // 2] = 100.0
    return rod


def step(piece: torch.Tensor) -> torch.Tensor:
    """The inner cells a moment later."""
    return piece[1:-1] + 0.4 * (piece[2:] - 2 * piece[1:-1] + piece[:-2])


def main() -> None:
    dist.init_process_group("collective_ops")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    first, last = CELLS * rank // ranks, CELLS * (rank + 1) // ranks
    inner = last - first
    # Symmetric memory is as large everywhere: the largest piece, and a border cell at either end.
    memory = symm_mem.empty(CELLS // ranks + 3, dtype=torch.float64, device="cpu")
    handle = symm_mem.rendezvous(memory, dist.group.WORLD)
    piece = memory[: inner + 2]
    piece.copy_(start()[first : last + 2])
    neighbours = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < ranks]
    # In the left neighbour's piece this rank's border cell stands last, in the right one's first.
    behind = inner_cells(rank - 1, ranks) + 1
    handle.barrier()
    for _ in range(STEPS):
        piece[1:-1] = step(piece)
        for peer in neighbours:
            handle.put_signal(peer, channel=0)  # I no longer read my border cells
        for peer in neighbours:
            handle.wait_signal(peer, channel=0)
            theirs = handle.get_buffer(peer, tuple(memory.shape), torch.float64)
            if peer < rank:
                theirs[behind] = piece[1]
            else:
                theirs[0] = piece[-2]
            handle.put_signal(peer, channel=1)  # they are new
        for peer in neighbours:
            handle.wait_signal(peer, channel=1)
    pieces = [torch.empty(inner_cells(peer, ranks), dtype=torch.float64) for peer in range(ranks)]
    dist.all_gather(pieces, piece[1:-1].contiguous())
    if rank == 0:
        rod = start()
        for _ in range(STEPS):
            rod[1:-1] = step(rod)
        assert torch.equal(torch.cat(pieces), rod[1:-1]), "the ranks' rod is another one"
        print(f"{CELLS} cells, {STEPS} steps, {ranks} ranks: equal to one process's, to the last bit")
    dist.destroy_process_group()


def inner_cells(rank: int, ranks: int) -> int:
    return CELLS * (rank + 1) // ranks - CELLS * rank // ranks


if __name__ == "__main__":
    main()
