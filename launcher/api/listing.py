"""What ``ps``, ``status`` and ``logs`` tell, during the run or later: a run's state in a word (such
as orphaned), ages, output."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from launcher.agent import disk
from launcher.api.choose_target import CONTAINERS, PROCESSES, open_target, target_of
from launcher.api.stopping import read_kept, read_outcome_now
from launcher.contract import protocol, typed
from launcher.contract.causes import OVER, RunState
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError, TargetError, name_exit_code
from launcher.contract.process_stat import is_stopped
from launcher.contract.waits import POLL_S
from launcher.follow.console import prefix_of
from launcher.follow.loop import fold, is_out_of_sight
from launcher.follow.nodes import with_silence
from launcher.follow.requests import read_withdrawn, without
from launcher.follow.table import render_columns
from launcher.follow.tails import Output, RunTails
from launcher.follow.target import SUSPENDED, ListedRun, LiveRun, NodeObservation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, describe_no_runs
from launcher.runs.folder import list_runs as list_folders
from launcher.runs.heals import Heal
from launcher.runs.ledger import read_heals, read_restarts
from launcher.runs.outcome import Outcome
from launcher.runs.summary import render_end, render_restarts, render_why
from launcher.targets.held.hold import describe_hold
from launcher.targets.machine import read_size

ORPHANED = "orphaned"
"""Nodes run on, but the launcher that followed them has died."""
UNREADABLE = "unreadable"
HELD = "held"
"""The run's nodes wait for other runs; no command picks it unless it is named."""
GOES_ON = (RunState.RUNNING.value, ORPHANED)


def with_size(row: ListedRun) -> ListedRun:
    """The row with the size of the run's folder; as it is, if the run has none here."""
    return replace(row, size_bytes=read_size(Path(row.folder))) if row.folder else row


def list_runs(run_root: Path, *, everything: bool) -> list[ListedRun]:
    """Runs that go on (or ``everything``), oldest first. Records outcomes of runs ended unseen."""
    rows = [_row(run) for run in list_folders(run_root)]
    return [row for row in rows if everything or row.state not in OVER]


def _row(run: RunFolder) -> ListedRun:
    age_s = max(0.0, round(SystemClock().wall() - run.submitted_at(), 1))
    try:
        plan = run.read_plan()
    except InputError:
        # The plan is of another version or damaged: such a folder must not hide the other runs.
        return ListedRun(run_id=run.run_id, state=UNREADABLE, age_s=age_s, folder=str(run.path))
    state, outcome = read_state(run, plan)
    cause = outcome.cause if outcome else ""
    if outcome is None and plan.is_hold:
        state, cause = HELD, describe_hold(run)
    return ListedRun(
        run_id=run.run_id,
        job=plan.job_name,
        target=plan.place,
        state=state,
        cause=cause,
        nnodes=len(plan.nodes),
        age_s=age_s,
        folder=str(run.path),
    )


def read_state(run: RunFolder, plan: LaunchPlan) -> tuple[str, Outcome | None]:
    """A run's state in a word. Records the outcome of a run that ended unseen."""
    state, outcome, _ = _find_state(run, plan)
    return state, outcome


def _find_state(run: RunFolder, plan: LaunchPlan) -> tuple[str, Outcome | None, TargetError | None]:
    """As ``read_state``, and the error of a target that does not answer."""
    outcome, is_suspended = read_kept(run, plan)
    target = target_of(plan, run.path.parent)
    if outcome is None and run.launcher_pid() is None:
        try:
            outcome = fold(run, target, SystemClock().wall())
        except TargetError as error:
            return "unknown", None, error
        if outcome is None and not target.traits.goes_on_alone:
            # If another machine started the run, its launcher may live there.
            may_run = run.is_foreign or is_out_of_sight(run, target)
            return (RunState.RUNNING.value if may_run else ORPHANED), None, None
    if outcome is None and (kept := target.suspension(plan)) is not None:
        is_suspended = kept.is_suspended() is True
    if is_suspended:
        return SUSPENDED, outcome, None
    return (outcome.state if outcome else RunState.RUNNING.value), outcome, None


def find_going_on(run_root: Path) -> list[RunFolder]:
    """Runs that go on, oldest first."""
    open_runs = (run for run in list_folders(run_root) if run.read_outcome() is None)
    return [run for run in open_runs if _row(run).state in (*GOES_ON, SUSPENDED)]


def describe_none(run_root: Path, *, everything: bool, is_here: bool) -> str:
    """Why a list of runs is empty, and what to type for others.

    ``is_here``: the list is of a folder, and not of a cluster.
    """
    if is_here and (everything or not list_folders(run_root)):
        return "{}\n  fix: {}\n".format(*describe_no_runs(run_root))
    if everything:
        return "no runs\n"
    return f"no runs go on; those that ended: {typed.command('ps', '--all')}\n"


def find_elsewhere(run_root: Path) -> list[LiveRun]:
    """Runs on this machine whose folders are not in ``run_root``."""
    running: list[LiveRun] = []
    for name in (CONTAINERS, PROCESSES):
        with contextlib.suppress(TargetError):
            running += open_target(name, run_root).live_runs()
    root = run_root.resolve()
    folders = [(live, Path(live.run_dir)) for live in running if live.run_dir]
    return [live for live, path in folders if path.parent != root and RunFolder(path).is_there()]


def tell_columns(rows: Sequence[ListedRun]) -> list[tuple[str, ...]]:
    """The columns of ``ps``, their names first."""
    header = ["RUN", "TARGET", "NODES", "STATE", "CAUSE", "AGE"]
    body = [
        [row.run_id, row.target, str(row.nnodes), row.state, row.cause, render_age(row.age_s)]
        for row in rows
    ]
    sizes = [row.size_bytes for row in rows]
    if any(size is not None for size in sizes):
        shown = ["SIZE", *("-" if size is None else disk.show_bytes(size) for size in sizes)]
        return [(*row, size) for row, size in zip((header, *body), shown, strict=True)]
    return [tuple(row) for row in (header, *body)]


def render_table(rows: Sequence[ListedRun]) -> str:
    """Columns for a person; ``rows`` are not empty."""
    ends = "".join(
        f"{row.run_id}: its launcher has gone; end it: {typed.command('stop', row.run_id)}\n"
        for row in rows
        if row.state == ORPHANED
    )
    return "\n".join((*render_columns(tell_columns(rows)), ends))


def render_age(age_s: float) -> str:
    """A time in the largest unit of which it has at least two: ``90 s``, ``3 min``, ``47 h``."""
    for unit, unit_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * unit_s:
            return f"{age_s // unit_s:.0f} {unit}"
    return f"{age_s:.0f} s"


@dataclass(frozen=True, kw_only=True, repr=False)
class RunStatus:
    """One run; ``nodes`` as the target reports them, none for a run that has ended.

    ``launcher_death`` proves that its launcher died, ``launcher_stopped`` that a signal has stopped
    it, as by Ctrl-Z; ``folder`` is empty if it is temporary.
    ``unseen`` is why the target does not report on the run now, and ``fix`` what helps.
    """

    run_id: str
    job: str
    target: str
    state: str
    attempt: int
    launcher_pid: int | None
    launcher_death: str
    folder: str
    nodes: tuple[NodeObservation, ...]
    metrics: Mapping[str, object]
    outcome: Outcome | None
    unseen: str = ""
    fix: str = ""
    hosts: tuple[str, ...] = ()
    """Host names by node index, if nodes have machines of their own."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Restarts of workers by cause, while the run goes on."""
    heals: tuple[Heal, ...] = ()
    hold: str = ""
    """Who holds its nodes, and who uses them; empty for a run of its own."""
    launcher_stopped: bool = False

    def to_jsonable(self) -> dict[str, object]:
        """Plain data."""
        nodes = [{**asdict(node), "state": node.state.value} for node in self.nodes]
        outcome = self.outcome and self.outcome.to_jsonable()
        return {**asdict(self), "nodes": nodes, "outcome": outcome}

    def __repr__(self) -> str:
        nodes = f", {len(self.nodes)} nodes" if self.nodes else ""
        return f"<RunStatus {self.run_id}: {self.state} on {self.target}{nodes}>"

    def __str__(self) -> str:
        return render_status(self)


def read_status(run: RunFolder) -> RunStatus:
    """One run as it is now. Records the outcome of a run that ended unseen."""
    plan, pid = run.read_plan(), run.launcher_pid()
    state, outcome, error = _find_state(run, plan)
    nodes: tuple[NodeObservation, ...] = ()
    if outcome is None and error is None:
        try:
            observed, error = target_of(plan, run.path.parent).observe_reachable(plan)
            going = without(observed, read_withdrawn(run, plan)).nodes
            now = SystemClock().wall()
            nodes = tuple(with_silence(run, plan, node, now) for node in going)
        except TargetError as unseen:
            error = unseen
    if outcome and outcome.failure and run.is_borrowed:
        # The folder is temporary, so name a command in place of each path in it.
        failure = outcome.failure.with_log_commands(run.run_id)
        outcome = replace(outcome, failure=failure)
    return RunStatus(
        run_id=run.run_id,
        job=plan.job_name,
        target=plan.place,
        state=state,
        attempt=plan.attempt,
        launcher_pid=pid,
        launcher_death=run.launcher_death(),
        launcher_stopped=pid is not None and is_stopped(pid),
        folder="" if run.is_borrowed else str(run.path),
        nodes=nodes,
        hosts=tuple(machine.name for machine in plan.machines),
        restarts=read_restarts(run) if outcome is None else {},
        heals=outcome.heals if outcome else read_heals(run, plan),
        hold=describe_hold(run) if outcome is None and plan.is_hold else "",
        metrics=run.read_metrics(plan),
        outcome=outcome,
        unseen=error.what if error else "",
        fix=error.hint if error else "",
    )


def render_status(status: RunStatus) -> str:
    """The status for a person."""
    if outcome := status.outcome:
        lines = [*render_end(outcome), *render_why(outcome)]
        if status.state != outcome.state:
            lines.append(f"  {status.state}")
    else:
        starts = f" ({status.attempt + 1} starts of all nodes)" if status.attempt else ""
        lines = [f"{status.run_id}: {status.state.upper()} on {status.target}{starts}"]
        lines += [f"  {status.hold}"] if status.hold else []
        lines += render_restarts(status.heals, status.restarts)
    for node in status.nodes:
        code = node.exit_code
        ended = "" if code is None else f", exit code {name_exit_code(code)}"
        detail = f"; {node.detail}" if node.detail else ""
        again = f", started {node.incarnation + 1} times" if node.incarnation else ""
        where = f"node {node.node_index}{_on_host(status, node)}{again}"
        lines.append(f"  {where}: {node.state.value}{ended}{detail}")
    lines += [f"  {key}: {value}" for key, value in status.metrics.items()]
    lines += [f"  folder: {typed.shown(Path(status.folder))}"] if status.folder else []
    if status.outcome is None and (warning := _warn_of_launcher(status)):
        lines.append(f"  {warning}")
    return "\n".join(lines) + "\n"


def _warn_of_launcher(status: RunStatus) -> str:
    """What is wrong with the launcher of a run that goes on; empty if nothing is."""
    proof, pid = status.launcher_death, status.launcher_pid
    end = f"end it: {typed.command('stop', status.run_id)}"
    if status.launcher_stopped:
        return f"its launcher is stopped, as by Ctrl-Z: fg in its terminal, or kill -CONT {pid}"
    if status.state == ORPHANED:
        dead = f"its launcher has died ({proof}); {end}"
        return dead if proof else "its launcher cannot be seen from here"
    if pid is None and any(node.detail == protocol.LAUNCHER_GONE for node in status.nodes):
        return f"its launcher is not heard; if it does not start the nodes again, {end}"
    return ""


def _on_host(status: RunStatus, node: NodeObservation) -> str:
    is_named = node.node_index < len(status.hosts) and status.hosts[node.node_index]
    return f" on {status.hosts[node.node_index]}" if is_named else ""


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

    The workers' stderr and the agents' lines go to ``stderr``. Raises ``BrokenPipeError`` if the
    reader has gone.
    """
    streams = {"stdout": stdout, "stderr": stderr}
    keeps_returns = not stdout.isatty()
    for output, prefix in read_output(
        run, follow=follow, rank=rank, agents=agents, keeps_returns=keeps_returns
    ):
        stream = streams[output.stream]
        stream.write(output.block.with_prefix(f"{prefix} ".encode()))
        # Flush at once, so that two streams into one file keep their order.
        stream.flush()


def read_output(
    run: RunFolder, *, follow: bool, rank: int | None, agents: bool, keeps_returns: bool
) -> Iterator[tuple[Output, str]]:
    """A run's output from its beginning, each part with its prefix; may wait with ``follow``.

    Raises ``InputError`` for a rank that the run does not have.
    """
    plan = run.read_plan()
    if rank is not None:
        _check_rank(run, plan, rank, follow=follow)
    tails = RunTails(
        run,
        workers_in_consoles=target_of(plan, run.path.parent).traits.workers_on_consoles,
        agents=agents and rank is None,
        keeps_returns=keeps_returns,
    )
    for _ in _turns(run, plan, follow=follow):
        yield from _prefixed(tails.poll(), plan, rank)
    yield from _prefixed(tails.close(), plan, rank)


def _check_rank(run: RunFolder, plan: LaunchPlan, rank: int, *, follow: bool) -> None:
    nproc = plan.nproc_per_node
    last = plan.max_nodes * nproc - 1
    known = [log.rank_on(log.node_index, nproc) for log in run.worker_logs()]
    if plan.is_elastic and known and not follow:
        last = max(known)  # fewer nodes may run than allowed; with ``follow``, more may join
    if rank > last:
        has = f"ranks 0 to {last}" if last else "rank 0 alone"
        raise InputError(f"--rank {rank}: {run.run_id} has {has}", f"--rank {last}")


def _turns(run: RunFolder, plan: LaunchPlan, *, follow: bool) -> Iterator[None]:
    """One turn for each look at the files, until no more output can come."""
    target = target_of(plan, run.path.parent)
    while follow and run.read_outcome() is None:
        if run.launcher_pid() is None and not is_out_of_sight(run, target):
            break
        yield
        time.sleep(POLL_S)
    if read_outcome_now(run, plan) is None and run.launcher_pid() is None:
        # No launcher here brings what other machines have into the folder, so this process does.
        for _ in target.bring_output(run, plan, follow=follow):
            yield
            time.sleep(POLL_S)


def _prefixed(
    outputs: Iterable[Output], plan: LaunchPlan, rank: int | None
) -> Iterator[tuple[Output, str]]:
    for output in outputs:
        worker_rank = None
        if output.worker is not None:
            worker_rank = output.worker.rank_on(output.node_index, plan.nproc_per_node)
            if rank not in (None, worker_rank) or output.block.is_progress:
                continue
        yield output, prefix_of(output.node_index, worker_rank)
