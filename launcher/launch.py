"""Starts a planned run and stays with it, in this terminal or in the background."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from launcher import contract, proc
from launcher.choose import KUBERNETES
from launcher.clock import SystemClock
from launcher.console import Console
from launcher.errors import InputError, LauncherError, TargetError
from launcher.follow import Follower
from launcher.key_errors import KeyInputError
from launcher.outlet import Outlet
from launcher.plan import LaunchPlan
from launcher.runs import Outcome, RunFolder, check_folder
from launcher.state import Reason
from launcher.targets.base import Target

if TYPE_CHECKING:
    from launcher.follow_kubernetes import ClusterFollower


def open_console(stream: TextIO | Outlet) -> Console:
    """A console on a stream, as its terminal and NO_COLOR allow."""
    terminal = stream.isatty()
    return Console(stream, terminal=terminal, colour="NO_COLOR" not in os.environ)


def create_run(plan: LaunchPlan, target: Target) -> RunFolder:
    """Makes the run's folder with the plan and what will be submitted.

    Raises ``InputError``, before anything exists, where a secret has no value to pass on, or a
    folder cannot be made.
    """
    if plan.target != KUBERNETES:
        _check_here(plan)
    target.check(plan)
    check_folder(Path(plan.run_dir))
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, target.render(plan).shell(), SystemClock().wall())
    return run


def _check_here(plan: LaunchPlan) -> None:
    """What nodes take from this machine: secrets by value, and the checkpoints' folder.

    That of hosts is on none but them.
    """
    missing = [name for name in plan.nodes[0].secrets if name not in os.environ]
    if missing:
        raise KeyInputError(
            ("secrets",),
            f"{', '.join(missing)} not set in this environment",
            f"export {missing[0]}=... before the launcher is called, or take it out of the job",
        )
    if not plan.hosts:
        check_folder(Path(plan.checkpoint_dir))


def follow_here(
    run: RunFolder,
    plan: LaunchPlan,
    target: Target,
    console: Console,
    *,
    verbose: bool,
    on_submitted: Callable[[], None] = lambda: None,
) -> Outcome:
    """Submits, calls ``on_submitted``, and follows in this process.

    The first SIGINT, SIGTERM or SIGHUP (a closed terminal) stops the run within its grace,
    a second one at once. Raises ``TargetError``, and ``KeyboardInterrupt`` for the second.
    """
    follower = _follower(run, plan, target, console, verbose=verbose)
    _stop_on_signals(follower)
    return follower.follow(on_submitted)


def follow_in_background(run: RunFolder, plan: LaunchPlan, target: Target) -> None:
    """Submits and follows in a process of its own session; returns once the nodes are started.

    Raises ``TargetError`` or ``InputError`` as the background process met it.
    """
    log = run.path / contract.LAUNCHER_LOG_FILE
    message = proc.in_background(lambda told: _follow_detached(run, plan, target, told), log)
    if message != SUBMITTED:
        told = (
            json.loads(message)
            if message
            else {"what": f"the launcher died; see {log}", "hint": ""}
        )
        error = InputError if told.get("bad_input") else TargetError
        raise error(told["what"], told["hint"])


SUBMITTED = "submitted"


def _follow_detached(run: RunFolder, plan: LaunchPlan, target: Target, told: proc.Tell) -> None:
    console = Console(sys.stdout, terminal=False, colour=False)
    follower = _follower(run, plan, target, console, verbose=False)
    _stop_on_signals(follower)
    try:
        follower.follow(lambda: told(SUBMITTED))
    except LauncherError as error:
        bad_input = isinstance(error, InputError)
        told(json.dumps({"what": error.what, "hint": error.hint, "bad_input": bad_input}))


def _follower(
    run: RunFolder, plan: LaunchPlan, target: Target, console: Console, *, verbose: bool
) -> Follower | ClusterFollower:
    if plan.target == KUBERNETES:
        from launcher.follow_kubernetes import ClusterFollower
        from launcher.targets.kubernetes import KubernetesTarget

        assert isinstance(target, KubernetesTarget), "plan and target belong together"
        return ClusterFollower(run, plan, target, console, SystemClock(), show_agents=verbose)
    return Follower(run, plan, target, console, SystemClock(), show_agents=verbose)


def _stop_on_signals(follower: Follower | ClusterFollower) -> None:
    def on_signal(signum: int, frame: FrameType | None) -> None:
        if follower.stop_reason is not None:
            raise KeyboardInterrupt
        follower.stop_reason = Reason.INTERRUPTED

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A hangup is ignored from the start under nohup: whoever asked for that shall have it.
        if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, on_signal)
