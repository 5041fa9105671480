"""What trainings of one job in several worlds did, and what explains where they differ. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import mean

from launcher.runs.ledger import LedgerEvent

HEAD = ("nproc_per_node", "workers", "batch", "samples/s", "efficiency", "last loss", "difference")
ROUNDING, SMALL = 3e-7, 1e-4
"""Relative differences: from rounding a loss, and from two steps of sums in another order."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A training by its steps. ``losses`` are means over all ranks, by samples seen; by steps, with
    ``batch`` 0, if the training counts no samples. ``lrs`` are by step."""

    name: str
    workers: int
    goes_on_after: int
    batch: float
    samples_per_s: float
    batch_norms: int
    losses: Mapping[int, float]
    lrs: Mapping[int, float]

    def differences(self, first: Curve) -> dict[int, float]:
        """Relative to the loss of ``first``, at each number of samples that both have reached."""
        base = first.losses
        common = sorted(self.losses.keys() & base.keys())
        return {at: abs(self.losses[at] - base[at]) / max(abs(base[at]), 1e-12) for at in common}


def measure_curve(name: str, events: Sequence[LedgerEvent]) -> Curve | None:
    """From the events of all ranks, with LEDGER_EVERY_STEP; None if they report no step."""
    progress = sorted((event for event in events if event.name == "progress"), key=lambda e: e.at)
    lead = [event for event in progress if event.values["rank"] == 0]
    if not lead:
        return None
    samples: Counter[int] = Counter()
    for event in lead:
        samples[event.values["step"]] += event.values["samples"]
    seen = accumulate(count or 1 for _, count in sorted(samples.items()))
    at = dict(zip(sorted(samples), seen, strict=True))
    losses: dict[int, list[float]] = {}
    for event in progress:
        if event.values["step"] in at and event.values["loss"] is not None:
            losses.setdefault(at[event.values["step"]], []).append(event.values["loss"])
    spent_s = lead[-1].at - lead[0].at - sum(event.values["save_stall_s"] for event in lead[1:])
    begun = {event.name: event.values for event in events if event.values["rank"] == 0}
    return Curve(
        name=name,
        workers=begun["train-started"]["world_size"],
        goes_on_after=begun["loaded"]["step"],
        batch=samples.total() / len(samples),
        samples_per_s=(samples.total() - lead[0].values["samples"]) / max(spent_s, 1e-9),
        batch_norms=begun["loaded"]["batch_norms"],
        losses={place: mean(values) for place, values in sorted(losses.items())},
        lrs={event.values["step"]: event.values["lr"] for event in lead},
    )


def explain(first: Curve, other: Curve) -> list[str]:
    """Why the losses of ``other`` differ from those of ``first``; empty if they do not."""
    differences = other.differences(first)
    if max(differences.values(), default=1.0) <= ROUNDING:
        return []
    if causes := list(_find_causes(first, other)):
        return causes
    if max([*differences.values()][:2], default=1.0) <= SMALL:
        return ["order of reduction: the same numbers are added in another order, and rounded"]
    at = next((at for at, value in differences.items() if value > SMALL), 0)
    what = "different samples, different random numbers (dropout), or gradients not averaged"
    return [f"{what}: the difference begins at {at} samples"]


def _find_causes(first: Curve, other: Curve) -> Iterator[str]:
    for curve in (first, other):
        if curve.goes_on_after:
            yield f"checkpoints: {curve.name} went on after step {curve.goes_on_after}"
    if first.batch != other.batch:
        yield f"effective batch: {first.batch:g} samples in a step against {other.batch:g}"
    for step, lr in first.lrs.items():
        if other.lrs.get(step, lr) != lr:
            yield f"learning rate: {lr:g} against {other.lrs[step]:g} in step {step}"
            break
    if other.batch_norms and first.batch / first.workers != other.batch / other.workers:
        yield f"BatchNorm: {other.batch_norms} by each process's own samples (SyncBatchNorm: all)"


def render_rows(curves: Sequence[Curve]) -> list[tuple[str, ...]]:
    """A row for each; the differences are those from the first one."""
    rows: list[tuple[str, ...]] = [HEAD]
    for curve in curves:
        base_per_s, per_s = (each.samples_per_s / each.workers for each in (curves[0], curve))
        differences = curve.differences(curves[0]).values()
        rows.append(
            (
                curve.name,
                str(curve.workers),
                f"{curve.batch:g}",
                f"{curve.samples_per_s:.4g}",
                f"{per_s / base_per_s:.0%}" if base_per_s else "-",
                f"{[*curve.losses.values()][-1]:.6g}" if curve.losses else "-",
                f"{max(differences):.1e}" if differences else "-",
            )
        )
    return rows


def render_causes(curves: Sequence[Curve]) -> list[str]:
    """A line for each cause of a difference from the first one."""
    return [
        f"{other.name} against {curves[0].name}: {cause}"
        for other in curves[1:]
        for cause in explain(curves[0], other) or ["no difference but the rounding of a loss"]
    ]
