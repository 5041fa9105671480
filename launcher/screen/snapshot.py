"""A run as it is now: its progress, and a row for each node. What the screen shows, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.agent.worker_exit import read_tail
from launcher.api.report import report_run
from launcher.contract import protocol
from launcher.contract.reasons import TERMINAL_STATES, NodeState
from launcher.contract.records import read_object
from launcher.follow.table import render_columns
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.goodput import Goodput
from launcher.runs.ledger import clock_offsets
from launcher.runs.report import NodeReport
from launcher.runs.timeline import Moment

SILENT_S = 3 * protocol.VITALS_S
"""A running node without vitals for so long stands among those with trouble."""
PACE_S = 60.0
"""The pace of the last so many seconds tells when the training will end."""
TAIL_BYTES = 4096
MOST_EVENTS = 200
HEADER = ("NODE", "STATE", "SEEN", "STEP", "CPU", "MEMORY", "GPU", "LAST LINE")


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """The newest incarnation of a node. ``seen_s``: since its last sign of life.

    ``steps`` are the optimizer steps of its slowest worker in this attempt. What is not known is
    None, and so are vitals of a node on a cluster, which no folder brings here.
    """

    node_index: int
    incarnation: int
    state: str
    exit_code: int | None
    detail: str
    host: str
    seen_s: float | None
    steps: int | None
    cpu_share: float | None
    memory_bytes: int | None
    memory_limit_bytes: int | None
    gpus: Sequence[Mapping[str, Any]]
    last_line: str

    @property
    def trouble(self) -> int:
        """For the order of rows: 0 is worst."""
        if self.state == NodeState.PENDING.value:
            return 2
        if self.state != NodeState.RUNNING.value:
            return 4 if self.exit_code == 0 else 0
        return 1 if self.seen_s is not None and self.seen_s > SILENT_S else 3

    def cells(self) -> tuple[str, ...]:
        """One for each column of ``HEADER``."""
        name = f"{self.node_index}.{self.incarnation}" + (f" {self.host}" if self.host else "")
        return (
            name,
            self.state,
            _age(self.seen_s),
            "" if self.steps is None else str(self.steps),
            _share(self.cpu_share),
            _memory(self.memory_bytes, self.memory_limit_bytes),
            ", ".join(_gpu(gpu) for gpu in self.gpus),
            self.detail or self.last_line,
        )


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """One run at an instant. ``until`` is its last step, and ``eta_s`` the seconds to that.

    ``goodput`` is the productive share so far, ``saved_s`` the age of the newest checkpoint;
    what the training does not tell is None. Nodes with trouble stand first.
    """

    run_id: str
    state: str
    reason: str
    target: str
    elapsed_s: float
    goodput: float | None
    step: int | None
    until: int | None
    loss: float | None
    samples_per_s: float | None
    eta_s: float | None
    saved_s: float | None
    restarts: Mapping[str, int]
    nodes: Sequence[NodeRow]
    events: Sequence[Moment]

    @property
    def is_over(self) -> bool:
        return self.state in {state.value for state in TERMINAL_STATES}

    def to_jsonable(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return asdict(self)


def read_snapshot(run: RunFolder, now: float) -> RunSnapshot:
    """A run at ``now``, seconds since the epoch. Raises ``InputError`` for one without a plan."""
    plan, told = run.read_plan(), report_run(run, now)
    offsets = clock_offsets(plan)
    vitals = {
        (node.node_index, node.incarnation): read_object(
            run.node_dir(node.node_index, node.incarnation) / protocol.VITALS_FILE
        )
        for node in newest_nodes(told.nodes)
    }
    last_lines = read_last_lines(run)
    rows = [
        _row(plan, node, vitals[node.node_index, node.incarnation], last_lines, now, offsets)
        for node in newest_nodes(told.nodes)
    ]
    training: Mapping[str, Any] = next(
        (found for told in vitals.values() if (found := told.get("training"))), {}
    )
    step, loss, pace = _progress(told.goodput, training, told.duration_s)
    until = told.goodput.until if told.goodput and told.goodput.until else None
    is_going_on = step is not None and until is not None and told.reason is None and pace > 0
    saved_at = training.get("saved_at")
    return RunSnapshot(
        run_id=told.run_id,
        state=told.state,
        reason=told.reason or "",
        target=told.target,
        elapsed_s=told.duration_s,
        goodput=round(told.goodput.share, 4) if told.goodput else None,
        step=step,
        until=until,
        loss=loss,
        samples_per_s=training.get("samples_per_s"),
        eta_s=round((until - step) / pace, 1) if is_going_on and until and step else None,
        saved_s=max(0.0, round(now - saved_at, 1)) if saved_at and told.reason is None else None,
        restarts=told.restarts,
        nodes=sorted(rows, key=lambda row: (row.trouble, row.node_index)),
        events=told.timeline[-MOST_EVENTS:],
    )


def newest_nodes(nodes: Iterable[NodeReport]) -> list[NodeReport]:
    """The newest incarnation of each node. Pure."""
    return list({node.node_index: node for node in nodes}.values())


def read_last_lines(run: RunFolder) -> dict[int, str]:
    """The last line of the output of each node, by node index."""
    outputs = find_outputs(run)
    return {index: last_line(read_tail(_newest(p), TAIL_BYTES)) for index, p in outputs.items()}


def find_outputs(run: RunFolder) -> dict[int, list[Path]]:
    """The files of the first worker of each node's newest start, or else its agent's, by index."""
    paths: dict[int, list[Path]] = {index: [path] for (index, _), path in run.consoles()}
    starts: dict[int, tuple[int, int]] = {}
    for log in run.worker_logs():  # The first rank of the newest start comes first of its start.
        start = log.incarnation, log.attempt
        if starts.get(log.node_index) != start:
            starts[log.node_index] = start
            paths[log.node_index] = [run.path / log.folder / name for name in log.streams]
    return paths


def _newest(paths: Sequence[Path]) -> Path:
    """The file that was written last, of those that hold something."""
    stats = [(path.stat(), path) for path in paths if path.exists()]
    filled = [(stat.st_mtime, path) for stat, path in stats if stat.st_size]
    return max(filled, default=(0, paths[0]))[1]


def last_line(text: str) -> str:
    """The last line that is not empty, of a bar its last state; control characters shown. Pure."""
    lines = [line for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return show_text(lines[-1].strip()) if lines else ""


def show_text(text: str) -> str:
    """A text that may hold anything, for a terminal: control characters by their codes. Pure."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _row(
    plan: LaunchPlan,
    node: NodeReport,
    vitals: Mapping[str, Any],
    last_lines: Mapping[int, str],
    now: float,
    offsets: Mapping[int, float],
) -> NodeRow:
    index = node.node_index
    at, steps = vitals.get("at"), vitals.get("steps") or {}
    has_name = index < len(plan.machines)
    return NodeRow(
        node_index=index,
        incarnation=node.incarnation,
        state=node.reason or node.state,
        exit_code=node.exit_code,
        detail=node.detail,
        host=plan.machines[index].name if has_name else "",
        seen_s=max(0.0, round(now - at + offsets.get(index, 0.0), 1))
        if at and not node.reason
        else None,
        steps=min(steps.values(), default=None),
        cpu_share=vitals.get("cpu_share"),
        memory_bytes=vitals.get("memory_bytes"),
        memory_limit_bytes=vitals.get("memory_limit_bytes"),
        gpus=vitals.get("gpus", ()),
        last_line=last_lines.get(index, ""),
    )


def _progress(
    goodput: Goodput | None, training: Mapping[str, Any], now_s: float
) -> tuple[int | None, float | None, float]:
    """Step, loss and steps per second; the ledger here, or what the nodes tell of theirs."""
    step, loss = training.get("step"), training.get("loss")
    points = goodput.points if goodput else ()
    if not points:
        return step, loss, 0.0
    recent = [point for point in points if point.after_s >= now_s - PACE_S] or points[-2:]
    first, last = recent[0], recent[-1]
    spent_s, steps = last.after_s - first.after_s, last.step - first.step
    pace = steps / spent_s if spent_s > 0 and steps > 0 else 0.0
    return max(last.step, step or 0), last.loss, pace


# -- text ----------------------------------------------------------------------------------------


def render_snapshot(seen: RunSnapshot, *, most_nodes: int = 50) -> str:
    """The snapshot as lines, for where there is no terminal. Pure."""
    rows = [row.cells() for row in seen.nodes[:most_nodes]]
    lines = [render_state(seen), render_progress(seen), *render_columns([HEADER, *rows])]
    if left_out := len(seen.nodes) - len(rows):
        lines.append(f"and {left_out} more nodes without trouble; all of them: --json")
    return "\n".join(line for line in lines if line) + "\n"


def render_state(seen: RunSnapshot) -> str:
    """The run in one line. Pure."""
    reason = f" ({seen.reason})" if seen.reason else ""
    parts = [
        f"{seen.run_id}: {seen.state}{reason} on {seen.target}",
        _duration(seen.elapsed_s),
        f"goodput {seen.goodput:.1%}" if seen.goodput is not None else "",
        ", ".join(f"{cause} {count}" for cause, count in seen.restarts.items()),
    ]
    return ", ".join(part for part in parts[:3] if part) + (
        f"; restarts: {parts[3]}" if parts[3] else ""
    )


def render_progress(seen: RunSnapshot) -> str:
    """The training in one line; empty where it tells nothing. Pure."""
    of = f"/{seen.until}" if seen.until else ""
    parts = [
        f"step {seen.step}{of}" if seen.step is not None else "",
        f"loss {seen.loss:.4g}" if seen.loss is not None else "",
        f"{seen.samples_per_s:,.0f} samples/s" if seen.samples_per_s is not None else "",
        f"{_duration(seen.eta_s)} left" if seen.eta_s is not None else "",
        f"saved {_duration(seen.saved_s)} ago" if seen.saved_s is not None else "",
    ]
    return "  ".join(part for part in parts if part)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes:02} min" if hours else f"{minutes}:{whole % 60:02} min"


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s"


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _memory(used: int | None, limit: int | None) -> str:
    return "" if not used or not limit else f"{used / 2**30:.1f}/{limit / 2**30:.0f} GiB"


def _gpu(gpu: Mapping[str, Any]) -> str:
    full = gpu["memory_bytes"] / max(1, gpu["memory_limit_bytes"])
    return f"{gpu['share']:.0%} {full:.0%} {gpu['temperature_c']}°C"
