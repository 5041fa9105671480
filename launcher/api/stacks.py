"""What all ranks of a run do now: their stacks and collectives, or the last ones of a run's end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.api.choose_target import target_of
from launcher.api.listing import read_state
from launcher.contract import typed
from launcher.contract.clock import Clock
from launcher.contract.errors import InputError
from launcher.contract.reports.look import Look, LookRequest, RankStacks, describe_state, look_dir
from launcher.follow.look import present_nodes
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.targets.held.hold import refuse_hold
from launcher.verdict.collectives import Mismatch, join_recorders
from launcher.verdict.looks import RankSnapshots, find_last_looks, read_snapshots
from launcher.verdict.rules.standstill import own_place
from launcher.verdict.stacks import merge_stacks, name_ranks, render_group

LIMIT_S = 5.0
"""How long a look waits for the nodes' answers."""


@dataclass(frozen=True, kw_only=True)
class RunStacks:
    """One look at all nodes. ``ended``: the run's end in a word, if this is an earlier look.

    ``looks`` are by node index; so is ``silent``, why nodes did not answer. ``stacks`` are by rank.
    """

    run_id: str
    at: float
    ended: str = ""
    looks: Mapping[int, Look] = field(default_factory=dict)
    silent: Mapping[int, str] = field(default_factory=dict)
    stacks: Mapping[int, RankStacks] = field(default_factory=dict)
    findings: tuple[Mismatch, ...] = ()

    def to_jsonable(self) -> dict[str, Any]:
        """Plain data."""
        groups = [asdict(group) for group in merge_stacks(self.stacks.values(), all_threads=True)]
        return {**asdict(self), "groups": groups}


def take_stacks(
    run: RunFolder, clock: Clock, *, rank: int | None = None, native: bool = False
) -> RunStacks:
    """Looks at all ranks, or at one. Blocks for ``LIMIT_S``, and while it reaches the nodes.

    For a run that has ended, gives the last look that its agents left. Raises ``InputError`` if
    there is none, or no agent that could look.
    """
    plan = run.read_plan()
    _, outcome = read_state(run, plan)
    if outcome is not None:
        return _read_last(run, outcome.cause, rank)
    if plan.agent is None:
        raise InputError(
            f"{plan.run_id} runs under plain torchrun, which has no agent that looks",
            "on each node: pgrep -f SCRIPT, then py-spy dump --pid PID (pip install py-spy)",
        )
    refuse_hold(run, plan, "stacks")
    at = clock.wall()
    folders, silent = look_at_nodes(run, plan, clock, native=native)
    begun = RunStacks(run_id=run.run_id, at=at, silent=silent)
    return _complete(run, read_snapshots(folders), rank, begun)


def look_at_nodes(
    run: RunFolder, plan: LaunchPlan, clock: Clock, *, native: bool = False
) -> tuple[dict[int, Path], Mapping[int, str]]:
    """Has the agents look at their workers: the folders of the looks, and why nodes are silent."""
    request = LookRequest(id=f"asked-{clock.wall():.3f}-{os.getpid()}", native=native)
    silent = target_of(plan, run.path.parent).look_at_workers(run, plan, request, LIMIT_S, clock)
    nodes = present_nodes(run)
    return {index: look_dir(folder, request.id) for index, folder in nodes.items()}, silent


def _read_last(run: RunFolder, ended: str, rank: int | None) -> RunStacks:
    """The newest look that agents took by themselves, or else that somebody asked for."""
    snapshots = read_snapshots(find_last_looks(run, run.incarnations()))
    if not snapshots.looks:
        what = f"{run.run_id} has ended ({ended}), and no look at its workers was left"
        raise InputError(what, typed.command("report", run.run_id))
    at = max(look.at for look in snapshots.looks.values())
    return _complete(run, snapshots, rank, RunStacks(run_id=run.run_id, at=at, ended=ended))


def _complete(
    run: RunFolder, snapshots: RankSnapshots, rank: int | None, begun: RunStacks
) -> RunStacks:
    """Adds what the looks show, of all ranks or of one, and what is wrong between collectives."""
    looks, stacks, traces = snapshots.looks, snapshots.stacks, snapshots.traces
    if rank is not None and rank not in traces and traces:
        what = f"--rank {rank}: {run.run_id} has {name_ranks(traces)} there"
        raise InputError(what, f"--rank {max(traces)}")
    idle = {node: "no worker runs there" for node, look in looks.items() if not look.ranks}
    return replace(
        begun,
        looks={
            node: replace(look, ranks=tuple(r for r in look.ranks if rank in (None, r.rank)))
            for node, look in looks.items()
        },
        silent={**idle, **begun.silent},
        stacks={r: of_rank for r, of_rank in stacks.items() if rank in (None, r)},
        findings=join_recorders(
            {r: trace for r, trace in traces.items() if trace},
            max((look.at for look in looks.values()), default=begun.at),
            places={r: own_place(of_rank.main_frames) for r, of_rank in stacks.items()},
        ),
    )


def render_stacks(report: RunStacks, *, all_threads: bool = False) -> str:
    """What is wrong first, then the groups of ranks, then what is missing, each with its reason."""
    lines = [finding.text for finding in report.findings]
    if report.ended:
        lines.insert(0, f"{report.run_id} has ended ({report.ended}); this is the last look at it")
    lines += [
        render_group(group)
        for group in merge_stacks(report.stacks.values(), all_threads=all_threads)
    ]
    lines += _by_reason(report)
    lines += [f"node {index}: no look: {why}" for index, why in sorted(report.silent.items())]
    return "\n".join(lines) + "\n"


def _by_reason(report: RunStacks) -> list[str]:
    """A line for each reason why a rank stands still, or why part of its look is missing."""
    ranks_of: dict[str, list[int]] = {}
    for worker in (worker for look in report.looks.values() for worker in look.ranks):
        if state := describe_state(worker):
            ranks_of.setdefault(state, []).append(worker.rank)
        if worker.no_stacks:
            ranks_of.setdefault(f"no stacks: {worker.no_stacks}", []).append(worker.rank)
        if worker.no_collectives:
            ranks_of.setdefault(f"no collectives: {worker.no_collectives}", []).append(worker.rank)
    is_native = any(look.native for look in report.looks.values())
    for rank, stacks in report.stacks.items():
        if stacks.missing:
            by = "the worker itself" if stacks.taken_by == "worker" else stacks.taken_by
            without = ", without the frames of C" if is_native else ""
            ranks_of.setdefault(f"by {by}{without}, as {stacks.missing}", []).append(rank)
    return [f"{name_ranks(ranks)}: {why}" for why, ranks in ranks_of.items()]
