"""Lists runs, shows one, prints its output: from any terminal, during the run or later."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from launcher.api.open import KUBERNETES, open_target
from launcher.api.stopping import read_outcome_now
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError, TargetError, name_exit_code
from launcher.contract.reasons import NodeState, RunState
from launcher.follow.loop import fold
from launcher.follow.scaling import read_withdrawn, without
from launcher.follow.table import render_columns
from launcher.follow.tails import Output, RunTails
from launcher.follow.target import Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.runs.folder import list_runs as list_folders
from launcher.runs.outcome import FailureReport, Outcome

if TYPE_CHECKING:
    from launcher.targets.kubernetes.target import KubernetesTarget

POLL_S = 0.1
ORPHANED = "orphaned"
"""Nodes run on, but the launcher that followed them has died."""
UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run in a list. ``age_s`` is counted from its submission."""

    run_id: str
    state: str
    age_s: float
    folder: str
    job: str = ""
    target: str = ""
    reason: str = ""
    nnodes: int = 0

    def to_jsonable(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def list_runs(run_root: Path, *, everything: bool) -> list[Row]:
    """Runs that go on (or ``everything``), oldest first; an ended one gets its outcome."""
    rows = [_row(run) for run in list_folders(run_root)]
    over = {RunState.SUCCEEDED.value, RunState.FAILED.value, RunState.STOPPED.value}
    return [row for row in rows if everything or row.state not in over]


def _row(run: RunFolder) -> Row:
    age_s = round(SystemClock().wall() - run.submitted_at(), 1)
    try:
        plan = run.read_plan()
    except InputError:
        # Of another version, or damaged: one such folder must not hide the other runs.
        return Row(run_id=run.run_id, state=UNREADABLE, age_s=age_s, folder=str(run.path))
    state, outcome = read_state(run, plan)
    return Row(
        run_id=run.run_id,
        job=plan.job_name,
        target=plan.target,
        state=state,
        reason=outcome.reason if outcome else "",
        nnodes=len(plan.nodes),
        age_s=age_s,
        folder=str(run.path),
    )


def read_state(run: RunFolder, plan: LaunchPlan) -> tuple[str, Outcome | None]:
    """A run's state in a word; one that ended unseen gets its outcome."""
    outcome = read_outcome_now(run, plan)
    if outcome is None and run.launcher_pid() is None:
        try:
            outcome = _fold(run, plan)
        except TargetError:
            return "unknown", None
        if outcome is None and plan.target != KUBERNETES:
            # Of a run that another machine started, its launcher may be there.
            return (RunState.RUNNING.value if run.is_foreign else ORPHANED), None
    return (outcome.state if outcome else RunState.RUNNING.value), outcome


def _fold(run: RunFolder, plan: LaunchPlan) -> Outcome | None:
    target, now = open_target(plan.target, run.path.parent), SystemClock().wall()
    if plan.target != KUBERNETES:
        return fold(run, target, now)
    from launcher.targets.kubernetes.follow import fold_cluster_run

    return fold_cluster_run(run, plan, _on_cluster(target), now)


def _on_cluster(target: Target) -> KubernetesTarget:
    from launcher.targets.kubernetes.target import KubernetesTarget

    assert isinstance(target, KubernetesTarget), "the plan's own"
    return target


def render_table(rows: Sequence[Row]) -> str:
    """Columns for a person."""
    if not rows:
        return "no runs; those that ended: launcher ps --all\n"
    header = ("RUN", "TARGET", "NODES", "STATE", "REASON", "AGE")
    body = [
        (row.run_id, row.target, str(row.nnodes), row.state, row.reason, f"{row.age_s:.0f} s")
        for row in rows
    ]
    ends = "".join(
        f"{row.run_id}: its launcher has gone; end it: launcher stop {row.run_id}\n"
        for row in rows
        if row.state == ORPHANED
    )
    return "\n".join((*render_columns([header, *body]), ends))


def read_status(run: RunFolder) -> dict[str, Any]:
    """One run: its state, its nodes as the target reports them, its outcome or metrics."""
    plan = run.read_plan()
    state, outcome = read_state(run, plan)
    nodes: list[dict[str, Any]] = []
    if outcome is None:
        observed = open_target(plan.target, run.path.parent).observe(plan)
        observation = without(observed, read_withdrawn(run, plan))
        nodes = [
            {
                "node_index": n.node_index,
                "incarnation": n.incarnation,
                "state": n.state.value,
                "exit_code": n.exit_code,
                "detail": n.detail,
            }
            for n in observation.nodes
        ]
    return {
        "run_id": run.run_id,
        "job": plan.job_name,
        "target": plan.target,
        "state": state,
        "attempt": plan.attempt,
        "launcher_pid": run.launcher_pid(),
        "launcher_death": run.launcher_death(),
        "folder": "" if run.is_borrowed else str(run.path),
        "nodes": nodes,
        "metrics": run.read_metrics(),
        "outcome": asdict(without_folder(run, outcome)) if outcome else None,
    }


def without_folder(run: RunFolder, outcome: Outcome) -> Outcome:
    """The outcome, with a command for each path in it where the folder does not last."""
    if not run.is_borrowed or outcome.failure is None:
        return outcome
    return replace(outcome, failure=outcome.failure.with_log_commands(run.run_id))


def render_status(status: dict[str, Any]) -> str:
    """The status for a person."""
    from launcher.runs.summary import render_clocks, render_failure

    lines = [
        f"{status['run_id']}: {status['state']} on {status['target']}, attempt {status['attempt']}"
    ]
    if outcome := status["outcome"]:
        lines.append(
            f"  {outcome['reason']}, exit code {outcome['exit_code']}, {outcome['duration_s']} s"
        )
        if outcome["failure"]:
            failure = FailureReport.from_jsonable(outcome["failure"])
            lines += render_failure(failure, outcome["reason"])
            lines += render_clocks(failure.clock_offsets_s)
    for node in status["nodes"]:
        ended = (
            "" if node["exit_code"] is None else f", exit code {name_exit_code(node['exit_code'])}"
        )
        said = f"; {node['detail']}" if node["detail"] else ""
        name = f"{node['node_index']}.{node['incarnation']}"
        lines.append(f"  node {name}: {node['state']}{ended}{said}")
    lines += [f"  {key}: {value}" for key, value in status["metrics"].items()]
    lines += [f"  folder: {status['folder']}"] if status["folder"] else []
    if status["state"] == ORPHANED:
        proof = status["launcher_death"]
        lines.append(
            f"  its launcher has died ({proof}); end it: launcher stop {status['run_id']}"
            if proof
            else "  its launcher cannot be seen from here"
        )
    return "\n".join(lines) + "\n"


def show_logs(
    run: RunFolder,
    stdout: BinaryIO,
    stderr: BinaryIO,
    *,
    follow: bool,
    rank: int | None,
    agents: bool,
) -> None:
    """Prints a run's output from its beginning; with ``follow`` until it has ended.

    The workers' stderr and the agents' lines go to ``stderr``. Raises ``BrokenPipeError`` where the
    reader has gone.
    """
    plan = run.read_plan()
    tails = RunTails(
        run,
        workers_in_consoles=plan.target == KUBERNETES,
        agents=agents and rank is None,
        keeps_returns=not stdout.isatty(),
    )
    streams = {"stdout": stdout, "stderr": stderr}
    for _ in _turns(run, plan, follow=follow):
        _write(tails.poll(), plan, streams, rank)
    _write(tails.close(), plan, streams, rank)


def _turns(run: RunFolder, plan: LaunchPlan, *, follow: bool) -> Iterator[None]:
    """One turn for each look at the files, until there is nothing more to come."""
    target = open_target(plan.target, run.path.parent)
    if follow and plan.target == "hosts" and goes_on(run, plan, target):
        look_on(run, plan, target)
    while follow and (run.launcher_pid() is not None or plan.target != KUBERNETES):
        if not goes_on(run, plan, target):
            return
        yield
        time.sleep(POLL_S)
    if (
        plan.target != KUBERNETES
        or read_outcome_now(run, plan) is not None
        or run.launcher_pid() is not None
    ):
        return
    # Nobody writes the pods' output into the folder: this process does.
    on_cluster = _on_cluster(target)
    if not follow:
        return on_cluster.read_logs(plan)
    from launcher.targets.kubernetes.follow import bring_logs

    for _ in bring_logs(run, plan, on_cluster, SystemClock()):
        yield
        time.sleep(POLL_S)


def look_on(run: RunFolder, plan: LaunchPlan, target: Target) -> None:
    """Brings the output of a run on hosts that nobody here follows."""
    from launcher.targets.hosts.target import HostsTarget

    if run.launcher_pid() is None:
        assert isinstance(target, HostsTarget), "plan and target belong together"
        target.look_on(plan)


def goes_on(run: RunFolder, plan: LaunchPlan, target: Target) -> bool:
    """Whether more output may come; of a run that nobody here follows, brings what hosts have."""
    if run.read_outcome() is not None:
        return False
    if run.launcher_pid() is not None:
        return True
    alive = (NodeState.RUNNING, NodeState.PENDING)
    nodes = target.observe(plan).nodes
    return plan.target == "hosts" and any(node.state in alive for node in nodes)


def _write(
    outputs: Iterable[Output], plan: LaunchPlan, streams: Mapping[str, BinaryIO], rank: int | None
) -> None:
    for output in outputs:
        if output.worker is None:
            who = "agent"
        else:
            own = output.worker.rank_on(output.node_index, plan.nodes[0].nproc_per_node)
            if rank not in (None, own) or output.block.is_progress:
                continue
            who = str(own)
        stream = streams[output.stream]
        stream.write(output.block.with_prefix(f"[{output.node_index}/{who}] ".encode()))
        # At once: of two streams into one file, each shall wait for the other.
        stream.flush()
