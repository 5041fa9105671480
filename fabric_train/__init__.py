"""What a training loop of your own can import: samplers, exact reduction, checkpoints, stopping.

``import fabric_train`` is cheap: a module, and torch with it, is imported when one of its names is
first used. Never imports ``launcher`` or ``train``; ``worker_env`` repeats the names that it shares
with ``launcher``, and a test keeps them equal.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fabric_train.agreement import Agreement
    from fabric_train.augmentation import Augmented
    from fabric_train.commit import SaveResult
    from fabric_train.continuity import Continuity
    from fabric_train.environment import make_deterministic, read_environment
    from fabric_train.errors import DivergedError, InputError, WorldMismatchError
    from fabric_train.fabric import check_world, launch_fabric, leave_world
    from fabric_train.ledger import Ledger, open_ledger
    from fabric_train.lineage import FencedError
    from fabric_train.loading import share_loader
    from fabric_train.manifest import CheckpointManifest
    from fabric_train.memory import share_row, take_row
    from fabric_train.pickling import check_picklable
    from fabric_train.preemption import (
        EXIT_PREEMPTED,
        PreemptedError,
        Preemption,
        Wish,
        exit_on_sigterm,
        finish_before_exit,
        ignore_sigterm,
    )
    from fabric_train.processes import launch_processes
    from fabric_train.randomness import derive_seed, seed_generators
    from fabric_train.ranks import rank_zero_first
    from fabric_train.reduction import ExactReduction, FastReduction, align
    from fabric_train.retention import Interval, Keep
    from fabric_train.sampler import GlobalBatchSampler, ShardSampler, fingerprint_tensors
    from fabric_train.saver import Saver
    from fabric_train.state import TrainState, digest_weights
    from fabric_train.strategies import make_strategy
    from fabric_train.strategies.strategy import Strategy
    from fabric_train.stream import SampleSource, StreamShards
    from fabric_train.worker_env import WorkerEnv, World, parse_worker_env
    from fabric_train.worlds import StateLostError, TrainingWorld, WorldLostError, Worlds

__all__ = [
    "EXIT_PREEMPTED",
    "Agreement",
    "Augmented",
    "CheckpointManifest",
    "Continuity",
    "DivergedError",
    "ExactReduction",
    "FastReduction",
    "FencedError",
    "GlobalBatchSampler",
    "InputError",
    "Interval",
    "Keep",
    "Ledger",
    "PreemptedError",
    "Preemption",
    "SampleSource",
    "SaveResult",
    "Saver",
    "ShardSampler",
    "StateLostError",
    "Strategy",
    "StreamShards",
    "TrainState",
    "TrainingWorld",
    "Wish",
    "WorkerEnv",
    "World",
    "WorldLostError",
    "WorldMismatchError",
    "Worlds",
    "align",
    "check_picklable",
    "check_world",
    "derive_seed",
    "digest_weights",
    "exit_on_sigterm",
    "fingerprint_tensors",
    "finish_before_exit",
    "ignore_sigterm",
    "launch_fabric",
    "launch_processes",
    "leave_world",
    "make_deterministic",
    "make_strategy",
    "open_ledger",
    "parse_worker_env",
    "rank_zero_first",
    "read_environment",
    "seed_generators",
    "share_loader",
    "share_row",
    "take_row",
]

_NAMES = {
    "agreement": "Agreement",
    "augmentation": "Augmented",
    "commit": "SaveResult",
    "continuity": "Continuity",
    "environment": "make_deterministic read_environment",
    "errors": "DivergedError InputError WorldMismatchError",
    "fabric": "check_world launch_fabric leave_world",
    "ledger": "Ledger open_ledger",
    "lineage": "FencedError",
    "loading": "share_loader",
    "manifest": "CheckpointManifest",
    "memory": "share_row take_row",
    "pickling": "check_picklable",
    "preemption": "EXIT_PREEMPTED PreemptedError Preemption Wish"
    " exit_on_sigterm finish_before_exit ignore_sigterm",
    "processes": "launch_processes",
    "ranks": "rank_zero_first",
    "randomness": "derive_seed seed_generators",
    "reduction": "ExactReduction FastReduction align",
    "retention": "Interval Keep",
    "sampler": "GlobalBatchSampler ShardSampler fingerprint_tensors",
    "saver": "Saver",
    "state": "TrainState digest_weights",
    "strategies": "make_strategy",
    "strategies.strategy": "Strategy",
    "stream": "SampleSource StreamShards",
    "worker_env": "WorkerEnv World parse_worker_env",
    "worlds": "StateLostError TrainingWorld WorldLostError Worlds",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # so that each name is looked up here once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
