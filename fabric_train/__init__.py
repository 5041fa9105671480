"""What a training loop of your own can import: samplers, exact reduction, checkpoints, stopping.

``import fabric_train`` is cheap: a module, and torch with it, is imported when one of its names is
first used. Never imports ``launcher`` or ``train``; ``worker_env`` repeats the names that it shares
with ``launcher``, and a test keeps them equal.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fabric_train.checkpointing.commit import SaveResult as SaveResult
    from fabric_train.checkpointing.lineage import FencedError as FencedError
    from fabric_train.checkpointing.manifest import CheckpointManifest as CheckpointManifest
    from fabric_train.checkpointing.memory import share_row as share_row
    from fabric_train.checkpointing.memory import take_row as take_row
    from fabric_train.checkpointing.retention import Interval as Interval
    from fabric_train.checkpointing.retention import Keep as Keep
    from fabric_train.checkpointing.saver import Saver as Saver
    from fabric_train.checkpointing.state import TrainState as TrainState
    from fabric_train.checkpointing.state import digest_weights as digest_weights
    from fabric_train.communication.reduction import ExactReduction as ExactReduction
    from fabric_train.communication.reduction import FastReduction as FastReduction
    from fabric_train.communication.reduction import align as align
    from fabric_train.determinism import derive_seed as derive_seed
    from fabric_train.determinism import make_deterministic as make_deterministic
    from fabric_train.determinism import read_environment as read_environment
    from fabric_train.determinism import seed_generators as seed_generators
    from fabric_train.errors import DivergedError as DivergedError
    from fabric_train.errors import InputError as InputError
    from fabric_train.errors import WorldMismatchError as WorldMismatchError
    from fabric_train.launch.fabric import check_world as check_world
    from fabric_train.launch.fabric import launch_fabric as launch_fabric
    from fabric_train.launch.fabric import leave_world as leave_world
    from fabric_train.launch.processes import launch_processes as launch_processes
    from fabric_train.loop.continuity import Continuity as Continuity
    from fabric_train.loop.ledger import Ledger as Ledger
    from fabric_train.loop.ledger import open_ledger as open_ledger
    from fabric_train.loop.preemption import EXIT_PREEMPTED as EXIT_PREEMPTED
    from fabric_train.loop.preemption import PreemptedError as PreemptedError
    from fabric_train.loop.preemption import Preemption as Preemption
    from fabric_train.loop.preemption import Wish as Wish
    from fabric_train.loop.preemption import exit_on_sigterm as exit_on_sigterm
    from fabric_train.loop.preemption import finish_before_exit as finish_before_exit
    from fabric_train.loop.preemption import ignore_sigterm as ignore_sigterm
    from fabric_train.ranks import Agreement as Agreement
    from fabric_train.ranks import rank_zero_first as rank_zero_first
    from fabric_train.sampling.augmentation import Augmented as Augmented
    from fabric_train.sampling.loading import share_loader as share_loader
    from fabric_train.sampling.pickling import check_picklable as check_picklable
    from fabric_train.sampling.sampler import GlobalBatchSampler as GlobalBatchSampler
    from fabric_train.sampling.sampler import ShardSampler as ShardSampler
    from fabric_train.sampling.sampler import fingerprint_tensors as fingerprint_tensors
    from fabric_train.sampling.stream import SampleSource as SampleSource
    from fabric_train.sampling.stream import StreamShards as StreamShards
    from fabric_train.strategies import make_strategy as make_strategy
    from fabric_train.strategies.strategy import Strategy as Strategy
    from fabric_train.worker_env import WorkerEnv as WorkerEnv
    from fabric_train.worker_env import World as World
    from fabric_train.worker_env import parse_worker_env as parse_worker_env
    from fabric_train.worlds import StateLostError as StateLostError
    from fabric_train.worlds import TrainingWorld as TrainingWorld
    from fabric_train.worlds import WorldLostError as WorldLostError
    from fabric_train.worlds import Worlds as Worlds

_NAMES = {
    "checkpointing.commit": "SaveResult",
    "checkpointing.lineage": "FencedError",
    "checkpointing.manifest": "CheckpointManifest",
    "checkpointing.memory": "share_row take_row",
    "checkpointing.retention": "Interval Keep",
    "checkpointing.saver": "Saver",
    "checkpointing.state": "TrainState digest_weights",
    "communication.reduction": "ExactReduction FastReduction align",
    "determinism": "derive_seed make_deterministic read_environment seed_generators",
    "errors": "DivergedError InputError WorldMismatchError",
    "launch.fabric": "check_world launch_fabric leave_world",
    "launch.processes": "launch_processes",
    "loop.continuity": "Continuity",
    "loop.ledger": "Ledger open_ledger",
    "loop.preemption": "EXIT_PREEMPTED PreemptedError Preemption Wish"
    " exit_on_sigterm finish_before_exit ignore_sigterm",
    "ranks": "Agreement rank_zero_first",
    "sampling.augmentation": "Augmented",
    "sampling.loading": "share_loader",
    "sampling.pickling": "check_picklable",
    "sampling.sampler": "GlobalBatchSampler ShardSampler fingerprint_tensors",
    "sampling.stream": "SampleSource StreamShards",
    "strategies": "make_strategy",
    "strategies.strategy": "Strategy",
    "worker_env": "WorkerEnv World parse_worker_env",
    "worlds": "StateLostError TrainingWorld WorldLostError Worlds",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # so that each name is looked up here once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
