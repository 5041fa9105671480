"""Horovod's interface for PyTorch on torch.distributed: a script changes its import alone.

    import fabric_train.horovod as hvd    # was: import horovod.torch as hvd

What is supported and what differs is in docs/horovod.md.
"""

from __future__ import annotations

from fabric_train.horovod import elastic as elastic
from fabric_train.horovod.context import cross_rank as cross_rank
from fabric_train.horovod.context import cross_size as cross_size
from fabric_train.horovod.context import gloo_built as gloo_built
from fabric_train.horovod.context import init as init
from fabric_train.horovod.context import is_initialized as is_initialized
from fabric_train.horovod.context import local_rank as local_rank
from fabric_train.horovod.context import local_size as local_size
from fabric_train.horovod.context import mpi_built as mpi_built
from fabric_train.horovod.context import nccl_built as nccl_built
from fabric_train.horovod.context import rank as rank
from fabric_train.horovod.context import shutdown as shutdown
from fabric_train.horovod.context import size as size
from fabric_train.horovod.engine import HorovodInternalError as HorovodInternalError
from fabric_train.horovod.operations import Adasum as Adasum
from fabric_train.horovod.operations import Average as Average
from fabric_train.horovod.operations import Compression as Compression
from fabric_train.horovod.operations import Max as Max
from fabric_train.horovod.operations import Min as Min
from fabric_train.horovod.operations import Product as Product
from fabric_train.horovod.operations import Sum as Sum
from fabric_train.horovod.operations import allgather as allgather
from fabric_train.horovod.operations import allgather_async as allgather_async
from fabric_train.horovod.operations import allgather_object as allgather_object
from fabric_train.horovod.operations import allreduce as allreduce
from fabric_train.horovod.operations import allreduce_ as allreduce_
from fabric_train.horovod.operations import allreduce_async as allreduce_async
from fabric_train.horovod.operations import allreduce_async_ as allreduce_async_
from fabric_train.horovod.operations import barrier as barrier
from fabric_train.horovod.operations import broadcast as broadcast
from fabric_train.horovod.operations import broadcast_ as broadcast_
from fabric_train.horovod.operations import broadcast_async as broadcast_async
from fabric_train.horovod.operations import broadcast_async_ as broadcast_async_
from fabric_train.horovod.operations import broadcast_object as broadcast_object
from fabric_train.horovod.operations import broadcast_optimizer_state as broadcast_optimizer_state
from fabric_train.horovod.operations import broadcast_parameters as broadcast_parameters
from fabric_train.horovod.operations import poll as poll
from fabric_train.horovod.operations import synchronize as synchronize
from fabric_train.horovod.optimizer import DistributedOptimizer as DistributedOptimizer
