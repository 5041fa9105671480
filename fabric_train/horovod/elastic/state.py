"""The state that a training resumes from: models, optimizers, samplers, and named values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fabric_train.horovod.elastic.keeper import Keeper
from fabric_train.horovod.elastic.sampler import ElasticSampler
from fabric_train.horovod.objects import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    copy_to_cpu,
)


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
