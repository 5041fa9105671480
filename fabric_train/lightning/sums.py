"""The metrics that a fit has summed since the epoch began, which Lightning does not save.

``self.log(..., on_epoch=True)`` and metrics of torchmetrics add up over an epoch on each rank. In a
world of another size rank 0 goes on with the sums of all ranks, and the others with none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer
from torchmetrics import Metric

from fabric_train.ranks import Ranks

States = dict[str, dict[str, Any]]
"""Values by the metric's name, then by the state's name."""
LOGGED = ("value", "cumulated_batch_size")
COUNT = "_update_count"


class EpochSums:
    """Collects and gives back the metrics of the training epoch, on all ranks."""

    def __init__(self, trainer: Trainer, ranks: Ranks) -> None:
        self._trainer, self._ranks = trainer, ranks
        self._loaded: list[States] = []

    def collect(self) -> list[tuple[States, States]]:
        """For each rank, what was logged and the module's metrics; all ranks must call it."""
        results = self._trainer.fit_loop.epoch_loop._results
        logged = {
            key: {
                name: move(getattr(metric, name), "cpu") for name in LOGGED if hasattr(metric, name)
            }
            for key, metric in results.items()
            if metric.is_tensor and metric.meta.on_epoch
        }
        own_states = {
            name: {
                COUNT: metric._update_count,
                **{key: move(value, "cpu") for key, value in metric.metric_state.items()},
            }
            for name, metric in self._own_metrics().items()
            if metric.update_called
        }
        return self._ranks.gather((logged, own_states))

    def load(self, saved: list[tuple[States, States]]) -> None:
        """Restores this rank's part; ``add_loaded`` adds logged values after the next batch."""
        rank = self._trainer.global_rank
        if len(saved) == self._trainer.world_size:
            saved = [saved[rank]]
        elif rank > 0:
            saved = []
        self._loaded = [logged for logged, _ in saved]
        for name, metric in self._own_metrics().items():
            states = [metrics[name] for _, metrics in saved if name in metrics]
            for key in states[0] if states else ():
                values = [move(state[key], metric.device) for state in states]
                setattr(metric, key, merge(values, metric._reductions.get(key, torch.sum)))

    def add_loaded(self) -> None:
        """Adds what an earlier start had logged in this epoch to what this one logs."""
        if not self._loaded:
            return
        results = self._trainer.fit_loop.epoch_loop._results
        for states in self._loaded:
            for key in states.keys() & results.keys():
                metric, state = results[key], states.pop(key)
                for name, value in state.items():
                    both = torch.stack([move(value, metric.value.device), getattr(metric, name)])
                    setattr(metric, name, choose_reduction(metric.meta)(both))
                metric._computed = None
        self._loaded = [states for states in self._loaded if states]

    def forget(self) -> None:
        """Drops loaded values that were not logged again; called when the epoch ends."""
        self._loaded = []

    def _own_metrics(self) -> dict[str, Metric]:
        modules = self._trainer.lightning_module.named_modules()
        return {name: module for name, module in modules if isinstance(module, Metric)}


def choose_reduction(meta: Any) -> Any:
    """How Lightning combines logged values, as a function of values stacked in dimension 0."""
    if meta.is_max_reduction:
        return lambda values: values.amax(0)
    return (
        (lambda values: values.amin(0)) if meta.is_min_reduction else (lambda values: values.sum(0))
    )


def merge(values: Sequence[Any], reduction: Any) -> Any:
    """Merges the values that several ranks have of one state, as torchmetrics does."""
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, list):
        return [each for value in values for each in value]
    if isinstance(first, int):
        return sum(values)
    return reduction(torch.stack(list(values))) if reduction else first


def move(value: Any, device: Any) -> Any:
    """Copies a state's tensors to a device; returns other values unchanged."""
    if isinstance(value, list):
        return [move(each, device) for each in value]
    return value.detach().clone().to(device) if isinstance(value, torch.Tensor) else value
