"""Who this process is, and what Horovod was built with, by Horovod's names."""

from __future__ import annotations

from fabric_train.horovod import context


def rank() -> int:
    """This process's number among all."""
    return context.get().starter.rank


def size() -> int:
    """The number of processes."""
    return context.get().starter.size


def local_rank() -> int:
    """This process's number on its node."""
    return context.get().starter.local_rank


def local_size() -> int:
    """The processes of this node."""
    return context.get().starter.local_size


def cross_rank() -> int:
    """The number of this node."""
    return context.get().starter.cross_rank


def cross_size() -> int:
    """The number of nodes."""
    return context.get().starter.cross_size


def is_homogeneous() -> bool:
    """Whether all nodes have equally many processes."""
    return size() == local_size() * cross_size()


def _no() -> bool:
    """False: torch.distributed moves the data here, by gloo and NCCL."""
    context.get()
    return False


def _not_built() -> bool:
    """False: none of Horovod's own C++ operations are in; torch.distributed's are used instead.

    So a script that would scale its learning rate for Adasum if NCCL is built does not.
    """
    return False


mpi_threads_supported = mpi_enabled = _no
mpi_built = ddl_built = ccl_built = cuda_built = rocm_built = nccl_built = _not_built


def gloo_enabled() -> bool:
    """True: CPU tensors travel by gloo."""
    return True


gloo_built = gloo_enabled
