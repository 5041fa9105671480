"""Horovod's elastic interface, for processes that are started again after a change of the world.

Horovod keeps the surviving processes and forms a new ring. Under the launcher and torchrun all
processes start again, so a commit is also written into CHECKPOINT_DIR, and ``run`` goes on from it.
"""

from __future__ import annotations

from fabric_train.horovod.elastic.state import ElasticSampler as ElasticSampler
from fabric_train.horovod.elastic.state import ObjectState as ObjectState
from fabric_train.horovod.elastic.state import TorchState as TorchState
from fabric_train.horovod.elastic.state import run as run
from fabric_train.horovod.engine import HorovodInternalError as HorovodInternalError
