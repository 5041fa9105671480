"""A run's loss, world size and failures on one time axis, as a PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.contract.errors import InputError
from launcher.runs.comparison import Curve
from launcher.runs.goodput import Goodput
from launcher.runs.report import Postmortem

INSTALL = "pip install 'fabric-train[plot]' (or: pip install 'matplotlib>=3.9,<4')"
"""What to type where matplotlib is missing."""
MOST_POINTS = 4_000
MOST_NODES, MOST_LIVES = 64, 1_000
"""In a picture; more could not be told apart."""


def write_plot(run_id: str, goodput: Goodput | None, path: Path) -> None:
    """Draws a run into ``path``. Raises ``InputError``, as where matplotlib is missing."""
    if goodput is None:
        raise InputError(
            f"run {run_id} has no training ledger, so there is nothing to draw",
            "leave --png out; how a script writes a ledger: launcher docs goodput",
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


def draw_svg(told: Postmortem) -> str:
    """A run as an SVG for a page; in its place why there is none. Raises nothing."""
    if (goodput := told.goodput) is None:
        return "No picture, as the training wrote no ledger."
    thinned = replace(goodput, loss=goodput.loss[:: 1 + len(goodput.loss) // MOST_POINTS])
    return _to_svg(told.run_id, lambda: _draw(told.run_id, thinned, _lives(told)))


def draw_comparison(curves: Sequence[Curve]) -> str:
    """Losses by samples, and their differences from the first, as ``draw_svg``."""

    def draw() -> Any:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 6.5), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True)
        for curve in curves:
            differences = curve.differences(curves[0])
            for axis, points in ((top, curve.losses), (bottom, differences)):
                every = -(-len(points) // MOST_POINTS) or 1
                places, values = [*points][::every], [*points.values()][::every]
                axis.plot(places, values, label=curve.name)
        top.set_ylabel("training loss")
        top.legend(title="nproc_per_node")
        bottom.set_ylabel("relative difference")
        bottom.set_yscale("symlog", linthresh=1e-8)
        bottom.set_xlabel("samples seen")
        return figure

    return _to_svg("comparison", draw)


def _to_svg(name: str, draw: Callable[[], Any]) -> str:
    """What ``draw`` draws; in its place why there is no picture."""
    try:
        import matplotlib
    except ImportError:
        return f"No picture, as matplotlib is not installed: {INSTALL}"
    matplotlib.use("Agg")
    file = io.StringIO()
    # Text stays text, and no date makes two pages of one run differ.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        draw().savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()[file.getvalue().index("<svg") :]


def _lives(told: Postmortem) -> list[tuple[int, int, float, float]]:
    """Each incarnation of the first nodes: node, incarnation, its first and its last event."""
    times: dict[tuple[int, int], list[float]] = {}
    for moment in told.timeline:
        if moment.node_index < MOST_NODES:
            times.setdefault((moment.node_index, moment.incarnation), []).append(moment.after_s)
    shown = sorted(times.items(), key=lambda life: min(life[1]))[-MOST_LIVES:]
    return [(node, inc, min(at), max(at)) for (node, inc), at in shown]


def _draw(
    run_id: str, goodput: Goodput, lives: Sequence[tuple[int, int, float, float]] = ()
) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5 if lives else 4.5), layout="constrained")
    ratios = (2, 1, 1) if lives else (2, 1)
    top, bottom, *more = figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios)
    for axis in more:
        _draw_lives(axis, lives)
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
    (*more, bottom)[0].set_xlabel("seconds since submission")
    bottom.set_ylim(bottom=0)
    bottom.yaxis.get_major_locator().set_params(integer=True)
    for axis in (top, bottom, *more):
        for n, at in enumerate(goodput.failures):
            label = "failure" if n == 0 and axis is top else None
            axis.axvline(at, color="tab:red", linestyle=":", linewidth=1, label=label)
    if goodput.failures:
        top.legend(loc="upper right")
    return figure


def _draw_lives(axis: Any, lives: Sequence[tuple[int, int, float, float]]) -> None:
    """A bar for each incarnation of a node, from its first event to its last."""
    for node, incarnation, begin, end in lives:
        color = ("tab:blue", "tab:orange")[incarnation % 2]
        axis.barh(node, max(end - begin, 0.01), left=begin, height=0.8, color=color)
    axis.set_ylabel("node")
    axis.yaxis.get_major_locator().set_params(integer=True)


def _split_loss(points: Sequence[tuple[float, int, float]]) -> list[list[tuple[float, int, float]]]:
    """A line for each start: where steps are made again, the next one begins further back."""
    pieces: list[list[tuple[float, int, float]]] = []
    for at, step, loss in points:
        if not pieces or step <= pieces[-1][-1][1]:
            pieces.append([])
        pieces[-1].append((at, step, loss))
    return pieces
