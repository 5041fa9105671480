"""The state that a training resumes from, and ``run``, which goes on from its last commit."""

from __future__ import annotations

import copy
import functools
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Sampler

from fabric_train.horovod import context
from fabric_train.horovod.elastic.keeper import Keeper
from fabric_train.horovod.engine import HorovodInternalError
from fabric_train.horovod.operations import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    copy_to_cpu,
)
from fabric_train.loop.preemption import EXIT_PREEMPTED, PreemptedError


class ObjectState:
    """Plain values; each is an attribute of the state, named as its argument.

    What ``to_commit`` returns is written to disk, and ``load_commit`` gets it after a restart.
    """

    def __init__(self, bcast_object: object = None, get_rank: object = None, **values: Any) -> None:
        self._reset_callbacks: list[Callable[[], object]] = []
        self._keeper: Keeper | None = None
        self._saved_state = copy.deepcopy(values)
        self._set_values()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Functions to call after a restart, before the ranks get rank 0's state.

        Each rank calls them, with ``size()`` as it is now, for example to scale a learning rate.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called by ``run`` after a restart."""
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keeps the present state: in memory at once, and on disk in the background.

        All ranks must call it. Answers the launcher if it asks for a checkpoint or a stop.
        """
        self.save()
        if self._keeper is not None:
            self._keeper.keep(self.to_commit())
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Answers the launcher, which asks when nodes join or the run is to stop; cheap.

        All ranks must call it, at the same step.
        """
        if self._keeper is not None:
            self._keeper.answer(self._save_and_take)

    def _save_and_take(self) -> Any:
        self.save()
        return self.to_commit()

    def save(self) -> None:
        """Copies the state in memory."""
        self._saved_state = copy.deepcopy({name: getattr(self, name) for name in self._saved_state})

    def sync(self) -> None:
        """Gives all ranks the state of rank 0."""
        present = {name: getattr(self, name) for name in self._saved_state}
        if present:
            self._saved_state = broadcast_object(present)
            self._set_values()

    def to_commit(self) -> Any:
        """What ``save`` copied last, to be pickled and written."""
        return {"values": self._saved_state}

    def load_commit(self, content: Any) -> None:
        """Goes on from what ``to_commit`` returned in another process."""
        known = content["values"].items()
        self._saved_state |= {name: value for name, value in known if name in self._saved_state}
        self._set_values()

    def _set_values(self) -> None:
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)


class ElasticSampler(Sampler[int]):
    """Yields this rank's indices; remembers how many samples of the epoch all ranks have had.

    Put it into the ``TorchState``, call ``record_batch`` after each step and ``set_epoch`` at the
    end of each epoch. Each rank takes every W-th index of those that are left. If they cannot be
    split evenly the first ones are repeated, as in Horovod.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch, self.processed_num = 0, 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch; call it at the end of the last one, so that no sample is seen twice."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that each rank has had ``batch_size`` more samples."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """The epoch and the place in it."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a saved place, with any number of ranks."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Splits the remaining indices over the present ranks."""
        self.num_replicas, self.rank = context.size(), context.rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        missing = self.total_size - len(left)
        padded = left + (left * -(-missing // len(left)) if left else [])[:missing]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


class KeptPart:
    """One member of a ``TorchState`` that has a ``state_dict``."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.saved = copy_to_cpu(value.state_dict())

    def save(self) -> None:
        """Copies its state into CPU memory."""
        self.saved = copy_to_cpu(self.value.state_dict())

    def restore(self) -> None:
        """Goes back to the copy."""
        # A copy, because an optimizer keeps the tensors that it loads.
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self) -> None:
        """Takes rank 0's state over."""
        if isinstance(self.value, nn.Module):
            broadcast_parameters(self.value.state_dict(), root_rank=0)
        elif isinstance(self.value, Optimizer):
            broadcast_optimizer_state(self.value, root_rank=0)
        else:
            self.value.load_state_dict(broadcast_object(self.value.state_dict()))


HANDLED = (nn.Module, Optimizer, LRScheduler, ElasticSampler)


class TorchState(ObjectState):
    """Models, optimizers, learning rate schedulers, samplers, and plain values, by name."""

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        values = {"model": model, "optimizer": optimizer, **values}
        values = {name: value for name, value in values.items() if value is not None}
        self._members = {
            name: KeptPart(value) for name, value in values.items() if isinstance(value, HANDLED)
        }
        for name, member in self._members.items():
            super().__setattr__(name, member.value)
        super().__init__(**{n: v for n, v in values.items() if n not in self._members})

    def __setattr__(self, name: str, value: Any) -> None:
        members = self.__dict__.get("_members", {})
        if name in members:
            members[name] = KeptPart(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        for member in self._members.values():
            member.save()
        super().save()

    def sync(self) -> None:
        for member in self._members.values():
            member.sync()
        super().sync()

    def to_commit(self) -> Any:
        parts = {name: member.saved for name, member in self._members.items()}
        return {**super().to_commit(), "parts": parts}

    def load_commit(self, content: Any) -> None:
        for name, saved in content["parts"].items():
            if name in self._members:
                self._members[name].saved = saved
                self._members[name].restore()
        super().load_commit(content)


# -- the training function -------------------------------------------------------------------------

WAIT_FOR_THE_END_S = 60.0
"""How long a process that lost a peer waits for its starter to end it.

If it ended at once, it would look like the process that failed first.
"""


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates ``func(state, ...)``, so that it begins with the state of the last commit.

    If CHECKPOINT_DIR holds a commit of an earlier start, rank 0 loads it, and all ranks call the
    reset callbacks. Then all ranks get rank 0's state. A lost peer ends this
    process too, because the launcher (or torchrun) starts all of them again.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        context.get()
        if state._keeper is None:
            state._keeper = Keeper()
            if state._keeper.open(state.load_commit):
                state.on_reset()
        keeper = state._keeper
        try:
            state.sync()
            state.save()
            return func(state, *args, **kwargs)
        except HorovodInternalError as error:
            keeper.close()
            _wait_for_the_end(error)
            raise
        except PreemptedError:
            _exit_preempted()
        finally:
            keeper.close()

    return wrapper


def _wait_for_the_end(error: HorovodInternalError) -> None:
    if context.get().engine.is_alive:
        return  # the ranks asked for different things: a mistake of the script
    print(f"horovod: {error}; this process waits to be restarted", file=sys.stderr, flush=True)
    time.sleep(WAIT_FOR_THE_END_S)


def _exit_preempted() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_PREEMPTED)  # the other ranks may be gone, so wait for nothing
