"""A run's loss, world size and failures on one time axis, as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.contract.errors import InputError
from launcher.runs.goodput import Goodput

INSTALL = "pip install 'fabric-train[plot]' (or: pip install 'matplotlib>=3.9,<4')"
"""What to type where matplotlib is missing."""


def write_plot(run_id: str, goodput: Goodput | None, path: Path) -> None:
    """Draws a run into ``path``. Raises ``InputError``, as where matplotlib is missing."""
    if goodput is None:
        raise InputError(
            f"run {run_id} has no training ledger, so there is nothing to draw",
            "leave --png out; how a script writes a ledger: docs/checkpoints.md#goodput",
        )
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("--png needs matplotlib, which is not installed", INSTALL) from error
    # By default matplotlib may look for a display.
    matplotlib.use("Agg")
    figure = _draw(run_id, goodput)
    try:
        figure.savefig(path, format="png", dpi=150)
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}"
        raise InputError(what, "name another file: --png FILE") from error


def _draw(run_id: str, goodput: Goodput) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    top.set_title(
        f"{run_id}: goodput {goodput.share:.0%} of {goodput.wall_s:.0f} s, "
        f"{len(goodput.failures)} failures survived"
    )
    for piece in _split_loss(goodput.loss):
        top.plot([at for at, _, _ in piece], [loss for _, _, loss in piece], color="tab:blue")
    top.set_ylabel("training loss")
    world = [*goodput.world, (goodput.wall_s, 0)]
    bottom.step(
        [at for at, _ in world], [size for _, size in world], where="post", color="tab:green"
    )
    bottom.set_ylabel("workers")
    bottom.set_xlabel("seconds since submission")
    bottom.set_ylim(bottom=0)
    bottom.yaxis.get_major_locator().set_params(integer=True)
    for axis in (top, bottom):
        for n, at in enumerate(goodput.failures):
            label = "failure" if n == 0 and axis is top else None
            axis.axvline(at, color="tab:red", linestyle=":", linewidth=1, label=label)
    if goodput.failures:
        top.legend(loc="upper right")
    return figure


def _split_loss(points: Sequence[tuple[float, int, float]]) -> list[list[tuple[float, int, float]]]:
    """A line for each start: where steps are made again, the next one begins further back."""
    pieces: list[list[tuple[float, int, float]]] = []
    for at, step, loss in points:
        if not pieces or step <= pieces[-1][-1][1]:
            pieces.append([])
        pieces[-1].append((at, step, loss))
    return pieces
