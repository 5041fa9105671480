"""Pictures of runs for pages, as SVG: the training over time and over samples, and nodes' lives."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

from launcher.contract.ending import show_text
from launcher.runs.goodput import Goodput, Point
from launcher.runs.report import Postmortem

INSTALL = "pip install 'fabric-train[plot]' (or: pip install 'matplotlib>=3.9,<4')"
"""What to type if matplotlib is missing."""
MOST_POINTS = 2_000
MOST_NODES, MOST_MARKS = 64, 1_000
"""Limits of a picture; more could not be told apart."""
WIDTH = 6.2
"""Inches of one column: its text can be read on a phone, and is not huge beside another column."""
PANELS = {"loss": "training loss", "lr": "learning rate", "samples_per_s": "samples/s"}
"""Fields of ``Point`` and their names; workers come below them."""
MARKS = {
    "fault": ("x", "tab:red"),
    "restart": ("^", "black"),
    "heal": ("o", "tab:blue"),
    "checkpoint": ("|", "darkgreen"),
}


def draw_course(runs: Mapping[str, Goodput], *, by: str) -> str:
    """Loss, learning rate, throughput and workers of runs by ``time`` or by ``samples``.

    Returns an SVG for a page, or a text on why there is none. Raises nothing.
    """
    if not any(goodput.points for goodput in runs.values()):
        return "No picture: the training reported no steps."
    points = [point for goodput in runs.values() for point in goodput.points]
    fields = [n for n in PANELS if any(getattr(p, n) is not None for p in points)]
    unit_s, unit = _unit(max(goodput.wall_s for goodput in runs.values()))
    has_samples = any(point.samples for point in points)

    def place(point: Point) -> float:
        if by == "time":
            return point.after_s / unit_s
        return point.samples if has_samples else point.step

    def draw() -> Any:
        figure, axes = _figure(len(fields) + 1)
        for number, (name, goodput) in enumerate(runs.items()):
            points = goodput.points[:: 1 + len(goodput.points) // MOST_POINTS]
            places, sizes = [*map(place, points)], [point.workers for point in points]
            for axis, field in zip(axes, fields, strict=False):
                values = [getattr(point, field) for point in points]
                axis.plot(places, values, f"C{number}", label=_label(name))
            if by == "time":
                world = [*goodput.world, (goodput.wall_s, 0)]
                places, sizes = [at / unit_s for at, _ in world], [size for _, size in world]
            axes[-1].step(places, sizes, f"C{number}", where="post")
            for at in goodput.failures[-MOST_MARKS:] if by == "time" and len(runs) == 1 else ():
                for axis in axes:
                    axis.axvline(at / unit_s, color="tab:red", linestyle=":", linewidth=1)
        for axis, label in zip(axes, [*(PANELS[name] for name in fields), "workers"], strict=True):
            axis.set_ylabel(label)
        axes[-1].set_ylim(bottom=0)
        axes[-1].yaxis.get_major_locator().set_params(integer=True)
        if len(runs) > 1:
            axes[0].legend()
        what = "samples seen" if has_samples else "steps"
        axes[-1].set_xlabel(f"{unit} since submission" if by == "time" else what)
        return figure

    return _to_svg(f"{by} of {', '.join(runs)}", draw)


def _label(name: str) -> str:
    # To matplotlib a dollar begins a formula.
    return show_text(name).replace("$", r"\$")


def draw_lives(report: Postmortem) -> str:
    """A bar for each incarnation of a node; its faults, restarts and heals; the checkpoints."""
    lives = _find_lives(report)
    if not lives:
        return ""
    unit_s, unit = _unit(report.duration_s)

    def draw() -> Any:
        nodes = 1 + max(node for node, _ in lives)
        figure, [axis] = _figure(1, height=1.3 + 0.1 * nodes)
        axis.barh(
            [node for node, _ in lives],
            [max(end - begin, report.duration_s / 500) / unit_s for begin, end in lives.values()],
            left=[begin / unit_s for begin, _ in lives.values()],
            color=[("lightsteelblue", "navajowhite")[incarnation % 2] for _, incarnation in lives],
            height=0.7,
        )
        for name, places in _find_marks(report, lives).items():
            if shown := places[-MOST_MARKS:]:
                marker, colour = MARKS[name]
                at, on = [at / unit_s for at, _ in shown], [node for _, node in shown]
                axis.plot(at, on, marker, color=colour, label=f"{name} ({len(places)})")
        axis.set_ylim(nodes - 0.4, -0.6)
        axis.set_xlim(0, max(report.duration_s, 0.1) / unit_s)
        axis.set_ylabel("node")
        axis.yaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axis.set_xlabel(f"{unit} since submission; a colour for each life of a node")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
        return figure

    return _to_svg(f"lives of {report.run_id}", draw)


def _figure(panels: int, height: float = 0.0) -> tuple[Any, Any]:
    """A figure with panels below one another."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height or 0.7 + 1.5 * panels), layout="constrained")
    return figure, figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]


def _to_svg(name: str, draw: Callable[[], Any]) -> str:
    """What ``draw`` draws, as SVG; or a text on why there is no picture."""
    try:
        import matplotlib
    except ImportError:
        return f"No picture, as matplotlib is not installed: {INSTALL}"
    # By default matplotlib may look for a display.
    matplotlib.use("Agg")
    file = io.StringIO()
    # Keep text as text, and leave out the date: two pages of one run are equal.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        draw().savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()[file.getvalue().index("<svg") :]


def _unit(seconds: float) -> tuple[float, str]:
    """The unit for so long a time: its seconds and name."""
    return (3600, "hours") if seconds > 7200 else (60, "minutes") if seconds > 300 else (1, "s")


def _find_lives(report: Postmortem) -> dict[tuple[int, int], tuple[float, float]]:
    """Begin and end of the last ``MOST_MARKS`` incarnations of the first ``MOST_NODES`` nodes."""
    lives: dict[tuple[int, int], tuple[float, float]] = {}
    for moment in report.timeline:
        if moment.node_index < MOST_NODES:
            at = min(moment.after_s, report.duration_s)
            begin, _ = lives.get(place := (moment.node_index, moment.incarnation), (at, at))
            lives[place] = begin, at
    for node in report.nodes:
        place = (node.node_index, node.incarnation)
        if report.cause is None and not node.cause and place in lives:
            lives[place] = lives[place][0], report.duration_s  # it goes on
    return dict([*lives.items()][-MOST_MARKS:])


def _find_marks(
    report: Postmortem, lives: Mapping[tuple[int, int], tuple[float, float]]
) -> Mapping[str, list[tuple[float, int]]]:
    """Time and node of each fault, restart, heal and checkpoint. A replaced node is a fault."""
    marks: dict[str, list[tuple[float, int]]] = {name: [] for name in MARKS}
    for moment in report.timeline:
        if moment.kind and moment.node_index < MOST_NODES:
            marks[moment.kind].append((moment.after_s, moment.node_index))
    marks["fault"] += [(end, n) for (n, inc), (_, end) in lives.items() if (n, inc + 1) in lives]
    marks["checkpoint"] += report.goodput.saves if report.goodput else ()
    return marks
