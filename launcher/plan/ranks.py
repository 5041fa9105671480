"""Arithmetic between the two spaces: nodes (index, node rank) and workers (rank, local rank)."""

from __future__ import annotations


def world_size(nnodes: int, nproc_per_node: int) -> int:
    """Workers in a group of ``nnodes`` equal nodes."""
    return nnodes * nproc_per_node


def rank_of(node_rank: int, local_rank: int, nproc_per_node: int) -> int:
    """Global rank of a worker; torchrun numbers workers node by node."""
    return node_rank * nproc_per_node + local_rank


def node_rank_of(node_index: int, live_indices: tuple[int, ...]) -> int:
    """Node rank of a node among the live ones, which the rendezvous orders by index.

    Raises ``ValueError`` where the node is not among them.
    """
    return sorted(live_indices).index(node_index)
