"""A run as it is now, as data for the screen: its report, the time left, and a row for each node,
those with trouble first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.agent.worker_exit import read_tail
from launcher.api.listing import render_age
from launcher.api.report import report_run
from launcher.contract.causes import NodeState
from launcher.contract.ending import show_line
from launcher.contract.reports.vitals import GpuVitals, Vitals, read_vitals
from launcher.follow.table import render_columns
from launcher.runs.folder import RunFolder
from launcher.runs.heals import tell_heals
from launcher.runs.ledger import SILENT_S, measure_silence
from launcher.runs.report import NodeReport, Postmortem
from launcher.runs.summary import render_headline

PACE_POINTS = 20
"""How many of the ledger's last points give the pace, and so the time left."""
TAIL_BYTES = 4096
HEADER = ("NODE", "STATE", "SEEN", "STEP", "CPU", "MEMORY", "GPU", "LAST LINE")


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """The newest incarnation of a node. ``vitals`` are None for a node on a cluster, whose file is
    not here. ``seen_s``: seconds since its last sign of life; None if not known, or if the node has
    ended."""

    report: NodeReport
    host: str
    vitals: Vitals | None
    seen_s: float | None
    last_line: str

    @property
    def trouble(self) -> int:
        """For the order of rows: 0 is worst."""
        state = self.report.cause or self.report.state
        if state == NodeState.PENDING.value:
            return 2
        if state != NodeState.RUNNING.value:
            return 4 if self.report.exit_code == 0 else 0
        return 1 if self.seen_s is not None and self.seen_s > SILENT_S else 3

    def cells(self) -> tuple[str, ...]:
        """One for each column of ``HEADER``."""
        report = self.report
        return (
            f"{report.node_index}.{report.incarnation} {self.host}".rstrip(),
            report.cause or report.state,
            "" if self.seen_s is None else f"{self.seen_s:.0f} s",
            *(_vitals(self.vitals) if self.vitals else ("",) * 4),
            report.told or report.detail or self.last_line,
        )


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """One run at an instant; nodes with trouble stand first."""

    report: Postmortem
    nodes: Sequence[NodeRow]

    def to_jsonable(self) -> dict[str, Any]:
        """Plain data for ``--json``: the report's, with other ``nodes``."""
        return {**self.report.to_jsonable(), "nodes": [asdict(row) for row in self.nodes]}


def read_snapshot(run: RunFolder, now: float) -> RunSnapshot:
    """A run at ``now``, seconds since the epoch. Raises ``InputError`` for one without a plan."""
    plan, report, outputs = run.read_plan(), report_run(run, now), find_outputs(run)

    def read_row(node: NodeReport) -> NodeRow:
        index = node.node_index
        vitals = read_vitals(run.node_dir(index, node.incarnation))
        return NodeRow(
            report=node,
            host=plan.machines[index].name if index < len(plan.machines) else "",
            vitals=vitals,
            seen_s=measure_silence(plan, index, vitals, now) if vitals and not node.cause else None,
            last_line=read_last_line(outputs.get(index, ())),
        )

    # In order of incarnation, so that the last one of each index stays.
    newest = {node.node_index: node for node in report.nodes}
    rows = sorted(map(read_row, newest.values()), key=lambda row: row.trouble)
    return RunSnapshot(report=report, nodes=rows)


def find_outputs(run: RunFolder) -> dict[int, list[Path]]:
    """The files of the first worker of each node's newest start, or else its agent's, by index."""
    # The last one of each node stays.
    logs = sorted(run.worker_logs(), key=lambda w: (w.incarnation, w.attempt, -w.rank_on(0, 0)))
    consoles = {index: [path] for (index, _), path in run.consoles()}
    of_workers = {w.node_index: [run.path / w.folder / name for name in w.streams] for w in logs}
    return {**consoles, **of_workers}


def read_last_line(paths: Sequence[Path]) -> str:
    """The last line of the file that was written last; of a bar its last state."""
    filled = [path for path in paths if path.exists() and path.stat().st_size]
    text = read_tail(max(filled, key=os.path.getmtime), TAIL_BYTES) if filled else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return show_line(lines[-1]) if lines else ""


# -- text ----------------------------------------------------------------------------------------


def render_snapshot(snapshot: RunSnapshot) -> str:
    """The snapshot as lines, for use without a terminal. Pure."""
    rows = [HEADER, *(row.cells() for row in snapshot.nodes)]
    lines = [
        render_headline(snapshot.report),
        render_training(snapshot.report),
        *render_columns(rows),
    ]
    return "\n".join(filter(None, lines))


def render_training(report: Postmortem) -> str:
    """The training in one line; empty if it reports nothing. Pure."""
    parts, goodput, goes_on = [], report.goodput, report.cause is None
    if goodput and goodput.points:
        recent = goodput.points[-PACE_POINTS:]
        last, steps = recent[-1], recent[-1].step - recent[0].step
        step_s = (last.after_s - recent[0].after_s) / steps if goes_on and steps > 0 else 0.0
        left_s = step_s * (goodput.until - last.step)
        parts += [
            f"step {last.step}" + (f"/{goodput.until}" if goodput.until else ""),
            f"loss {last.loss:.4g}" if last.loss is not None else "",
            f"{last.samples_per_s:,.0f} samples/s" if last.samples_per_s else "",
            f"{render_age(left_s)} left" if left_s > 0 else "",
        ]
    if goodput and goodput.saves and goes_on:
        parts.append(f"saved {render_age(report.duration_s - goodput.saves[-1][0])} ago")
    parts += [f"goodput {goodput.share:.1%}"] if goodput else []
    restarts = ", ".join(f"{cause} {count}" for cause, count in report.restarts.items())
    parts += [f"restarts: {restarts}"] if restarts else []
    parts += [f"{name} {how}" for name, how in tell_heals(report.heals).items()]
    return "  ".join(filter(None, parts))


def _vitals(vitals: Vitals) -> tuple[str, ...]:
    """STEP, CPU, MEMORY and GPU."""
    return (
        str(min(vitals.steps.values(), default="")),
        f"{vitals.cpu_share:.0%}",
        f"{vitals.memory_bytes / 2**30:.1f}/{vitals.memory_limit_bytes / 2**30:.0f} GiB",
        ", ".join(map(_gpu, vitals.gpus)),
    )


def _gpu(gpu: GpuVitals) -> str:
    full = gpu.memory_bytes / max(1, gpu.memory_limit_bytes)
    return f"{gpu.share:.0%} {full:.0%} {gpu.temperature_c}°C"
