"""Arithmetic between the two spaces: nodes (index, node rank) and workers (rank, local rank)."""

from __future__ import annotations


def rank_of(node_rank: int, local_rank: int, nproc_per_node: int) -> int:
    """Global rank of a worker; torchrun numbers workers node by node."""
    return node_rank * nproc_per_node + local_rank


def node_rank_of(node_index: int, live_indices: tuple[int, ...]) -> int:
    """Node rank of one of the live nodes; the rendezvous orders them by index."""
    return sorted(live_indices).index(node_index)
