"""Why a run failed, or stands still: the evidence from its folder and its target, and a verdict."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from launcher.api.listing import GOES_ON, HELD, read_state
from launcher.api.report import read_node_states
from launcher.api.stacks import look_at_nodes
from launcher.contract import protocol
from launcher.contract.causes import RunState
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError, LauncherError
from launcher.runs.folder import RunFolder
from launcher.verdict.evidence import Evidence, read_run
from launcher.verdict.torchrun_logs import read_file, read_folder

_OF_RUNS = (protocol.NODES_DIR, protocol.OUTCOME_FILE, protocol.PLAN_FILE)


def read_named_run(run: RunFolder) -> Evidence:
    """The evidence of a run that has a plan. Records the outcome of a run that ended unseen."""
    plan = run.read_plan()
    state, outcome = read_state(run, plan)
    states, unseen = read_node_states(run, plan) if state in GOES_ON else ({}, None)
    nodes = {
        index: f"{state}: {detail}" for (index, _), (state, detail) in states.items() if detail
    }
    looks: dict[int, Path] | None = None
    if state in GOES_ON and plan.agent is not None and not plan.is_hold:
        # Without looks, as for another user's run or a silent target, the folder must do.
        with contextlib.suppress(LauncherError, OSError):
            looks, _ = look_at_nodes(run, plan, SystemClock())
    if plan.is_hold and state == RunState.RUNNING.value:
        state = HELD
    evidence = read_run(run, outcome, state, nodes, looks)
    silent = (unseen.what,) if unseen and not nodes else ()
    return replace(evidence, missing=(*silent, *evidence.missing))


def read_path(path: Path) -> Evidence:
    """The evidence of a run's folder, whole or not, of a folder of logs, or of one log."""
    if path.is_file():
        return read_file(path)
    if not path.is_dir():
        raise InputError(f"{path}: no log and no folder", "name a run, a folder of logs, or a log")
    is_run = any((path / name).exists() for name in _OF_RUNS)
    return read_run(RunFolder(path.resolve())) if is_run else read_folder(path)
