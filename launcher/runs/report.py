"""The full report of a run, while it runs or later: cause, restarts, nodes, timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from launcher.code.record import CodeRecord, read_record
from launcher.contract import typed
from launcher.contract.causes import OVER, Cause, NodeState
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.failure import read_report
from launcher.runs.folder import RunFolder
from launcher.runs.goodput import Goodput, measure_goodput
from launcher.runs.heals import Heal, find_heals
from launcher.runs.ledger import (
    LedgerEvent,
    agent_ledger,
    by_launchers_clock,
    clock_offsets,
    read_ledger,
    read_moments,
    read_restarts,
    read_train_ledger,
)
from launcher.runs.outcome import FailureReport, Outcome
from launcher.runs.summary import render_end, render_why
from launcher.runs.timeline import Moment, measure_phases, tell_timeline

TIMELINE_LINES = 40
LEAST_SHOWN_S = 0.05
"""A class of goodput that took less is left out: it would read 0.0 s."""

_BY_A_PERSON = (Cause.INTERRUPTED, Cause.STOP_REQUESTED)
"""Only the launcher knows that a person asked for the end: to its node each SIGTERM is the same."""
_ASKED = {"stop-requested": "reason", "agent-ended": "cause"}

Ledgers = Mapping[tuple[int, int], Sequence[LedgerEvent]]
"""The agents' events by (node index, incarnation)."""


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One incarnation of a node in a report; ``cause`` is None if it left no outcome.

    ``state`` is then what the target reports (``NodeState``); empty if that is not known. ``told``
    is the detail with the worker that failed first.
    """

    node_index: int
    incarnation: int
    attempts: int
    cause: str | None
    exit_code: int | None
    detail: str
    phases_s: Mapping[str, float]
    state: str
    told: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Postmortem:
    """All that is known of a run. ``cause`` and ``exit_code`` are None while it goes on.

    ``attempts`` counts the starts of all nodes; ``phases_s`` are seconds over all nodes;
    ``goodput`` is None if the training wrote no ledger; ``folder`` is empty for a run whose
    folder is not on this machine.
    """

    run_id: str
    job: str
    target: str
    engine: str
    state: str
    cause: str | None
    fault: str | None
    detail: str
    exit_code: int | None
    attempts: int
    duration_s: float
    failure: FailureReport | None
    restarts: Mapping[str, int]
    nodes: Sequence[NodeReport]
    clock_offsets_s: Mapping[str, float]
    phases_s: Mapping[str, float]
    goodput: Goodput | None
    timeline: Sequence[Moment]
    folder: str
    code: CodeRecord | None = None
    """The code that the run took along; None if its image held it."""
    missing: Sequence[str] = ()
    """What of the run could not be read."""
    heals: Sequence[Heal] = ()
    replaced_nodes: int = 0
    verdict: str = ""
    """As in the outcome."""

    def to_jsonable(self) -> Mapping[str, object]:
        """Plain data for ``--json``."""
        goodput = self.goodput.to_jsonable() if self.goodput else None
        return {**asdict(self), "goodput": goodput}

    def __repr__(self) -> str:
        cause = f", {self.cause}" if self.cause else ""
        return f"<Postmortem {self.run_id}: {self.state} on {self.target}{cause}>"

    def __str__(self) -> str:
        return render_postmortem(self)


def read_postmortem(
    run: RunFolder,
    plan: LaunchPlan,
    state: str,
    outcome: Outcome | None,
    now: float,
    states: Mapping[tuple[int, int], tuple[str, str]],
) -> Postmortem:
    """Reads the run's folder; ``state`` is the run's, ``now`` is in seconds since the epoch.

    ``states`` has the present nodes of a run that goes on, by (node index, incarnation): each
    node's state, and what the target says of the node.
    """
    offsets = clock_offsets(plan)
    ledgers = {
        node: by_launchers_clock(read_ledger(agent_ledger(run, *node)), offsets)
        for node in run.incarnations()
    }
    asked = outcome.cause if outcome and outcome.cause in _BY_A_PERSON else Cause.PREEMPTED
    for last in dict(ledgers.keys()).items():
        ledgers[last] = tuple(_name_who_asked(event, asked) for event in ledgers[last])
    over = state in OVER
    events = [event for events in ledgers.values() for event in events]
    # If the time of submission is lost, count from the first event.
    submitted_at = run.submitted_at() or min((event.at for event in events), default=now)
    nodes = _read_nodes(run, ledgers, states, None if over else now, asked)
    # For a run that goes on: the failure of its present attempt, if there is one.
    failure = outcome.failure if outcome else read_report(run, plan)
    duration_s = outcome.duration_s if outcome else max(0.0, round(now - submitted_at, 3))
    ended_at = submitted_at + outcome.duration_s if outcome else now
    trained = by_launchers_clock(read_train_ledger(run), offsets)
    phases_s: Counter[str] = Counter()
    for node in nodes:
        phases_s.update(node.phases_s)
    return Postmortem(
        run_id=run.run_id,
        job=plan.job_name,
        target=plan.place,
        engine="torchrun" if plan.agent is None else "agent",
        state=state,
        cause=outcome.cause if outcome else None,
        fault=outcome.fault if outcome else None,
        detail=outcome.detail if outcome else "",
        exit_code=outcome.exit_code if outcome else None,
        attempts=plan.attempt + 1,
        duration_s=duration_s,
        failure=failure.with_log_commands(run.run_id) if failure and run.is_borrowed else failure,
        restarts=(outcome.restarts if outcome else None) or read_restarts(run),
        heals=(outcome.heals if outcome else ()) or find_heals(events),
        replaced_nodes=outcome.replaced_nodes if outcome else 0,
        verdict=outcome.verdict if outcome else "",
        nodes=nodes,
        clock_offsets_s={plan.machines[i].name: offsets[i] for i in offsets},
        phases_s={phase: round(spent_s, 3) for phase, spent_s in phases_s.items()},
        goodput=measure_goodput(trained, events, submitted_at, ended_at),
        timeline=tell_timeline([*events, *read_moments(run)], submitted_at),
        folder="" if run.is_borrowed else str(run.path),
        code=read_record(run.path),
    )


def _name_who_asked(event: LedgerEvent, asked: Cause) -> LedgerEvent:
    """The event with ``asked`` for what the node calls preempted."""
    key = _ASKED.get(event.name, "")
    if event.values.get(key) != Cause.PREEMPTED:
        return event
    return replace(event, values={**event.values, key: asked.value})


def _read_nodes(
    run: RunFolder,
    ledgers: Ledgers,
    states: Mapping[tuple[int, int], tuple[str, str]],
    now: float | None,
    asked: Cause,
) -> list[NodeReport]:
    """Every incarnation that left a folder, or that the target knows.

    ``now`` is None for a run that is over. ``asked`` is why nodes were asked to end.
    """
    attempts = Counter(
        node for node, _ in {((w.node_index, w.incarnation), w.attempt) for w in run.worker_logs()}
    )
    steps_seen = any(e.name == "first-step" for events in ledgers.values() for e in events)
    known = sorted({*ledgers, *states})
    # In order of incarnation, so that the last one of each index stays.
    newest = dict(known)
    reports = []
    for index, incarnation in known:
        events = ledgers.get((index, incarnation), ())
        outcome = run.read_node_outcome(index, incarnation)
        # An agent that could not write its outcome may have written to its ledger.
        ended = next((e.values for e in reversed(events) if e.name == "agent-ended"), {})
        cause = outcome.cause if outcome else ended.get("cause")
        if cause == Cause.PREEMPTED and newest[index] == incarnation:
            cause = asked
        goes_on = now is not None and newest[index] == incarnation
        state, on_target = NodeState.MISSING.value, ""
        if goes_on:
            state, on_target = states.get((index, incarnation), ("", ""))
        starts = sum(event.name == "workers-started" for event in events)
        counted_to = now if goes_on and not cause else None
        node = NodeReport(
            node_index=index,
            incarnation=incarnation,
            attempts=outcome.attempts if outcome else attempts[index, incarnation] or starts,
            cause=cause,
            exit_code=outcome.exit_code if outcome else ended.get("exit_code"),
            detail=outcome.detail if outcome else on_target,
            told=outcome.summary if outcome else "",
            phases_s=measure_phases(events, steps_seen=steps_seen, now=counted_to),
            state="" if cause else state,
        )
        reports.append(node)
    return reports


# -- text --------------------------------------------------------------------------------------


def render_postmortem(report: Postmortem, *, most_moments: int = TIMELINE_LINES) -> str:
    """What ``read_postmortem`` found, for a person, with the last events. Pure."""
    lines = [*render_end(report), *render_why(report)]
    lines += [f"  missing: {what}" for what in report.missing]
    lines.append("  nodes:" if report.nodes else "  nodes: none was started")
    lines += [render_node(node, report) for node in report.nodes]
    if report.phases_s:
        lines.append(f"  seconds by phase, over all nodes: {_phases(report.phases_s)}")
    lines += _render_goodput(report.goodput) if report.goodput else []
    lines += _render_timeline(report.timeline, most_moments)
    lines += [_render_code(report.code, report.run_id)] if report.code else []
    lines += [f"  folder: {report.folder}"] if report.folder else []
    return "\n".join(lines) + "\n"


def _render_code(code: CodeRecord, run_id: str) -> str:
    commit = f"commit {code.commit[:12]}" if code.commit else "no commit"
    changed = " with changes (code.diff)" if code.commit and code.is_dirty else ""
    what = f"{commit}{changed}, {code.files} file{'s' * (code.files != 1)}, hash {code.hash[:12]}"
    return f"  code: {code.root}: {what}; once more: {typed.command('run', '--again', run_id)}"


def render_node(node: NodeReport, report: Postmortem) -> str:
    """How one incarnation of a node ended, or its present state, in one line."""
    if node.cause:
        detail = node.detail if report.failure and report.failure.first else node.told
        how = f"{node.cause}, exit code {node.exit_code}" + (f" ({detail})" if detail else "")
    elif node.state in (NodeState.RUNNING.value, NodeState.PENDING.value):
        how = f"{node.state}; {node.detail}" if node.detail else node.state
    elif report.engine == "torchrun":
        how = "plain torchrun keeps no report of a node"
    elif node.state:
        how = "no report: it was killed, or its machine was lost"
    else:
        how = "no report: it runs, or was killed"
    phases = f"; {_phases(node.phases_s)}" if node.phases_s else ""
    attempts = f"{_count(node.attempts, 'attempt')}, " if node.attempts else ""
    return f"    {node.node_index}.{node.incarnation}: {attempts}{how}{phases}"


def _phases(phases_s: Mapping[str, float]) -> str:
    return ", ".join(f"{phase} {spent_s:.1f} s" for phase, spent_s in phases_s.items())


def _render_goodput(goodput: Goodput) -> list[str]:
    shown = ((name, s) for name, s in goodput.seconds.items() if s >= LEAST_SHOWN_S)
    sizes = [str(size) for _, size in goodput.world if size]
    changes = " -> ".join(size for n, size in enumerate(sizes) if n == 0 or size != sizes[n - 1])
    return [
        f"  goodput: {goodput.share:.1%} of {goodput.wall_s:.1f} s ({_phases(dict(shown))})",
        f"  training: {_count(goodput.starts, 'start')}, "
        f"{_count(goodput.lost_steps, 'step')} made again; workers over time: {changes}",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _render_timeline(timeline: Sequence[Moment], most: int) -> list[str]:
    if not timeline:
        return []
    lines = ["  timeline, seconds since submission, node.incarnation:"]
    if (left_out := len(timeline) - most) > 0:
        lines.append(f"    {left_out} earlier events; all of them: --json")
    return [*lines, *(f"    {moment}" for moment in timeline[-most:])]
