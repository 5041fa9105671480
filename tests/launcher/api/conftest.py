"""A run's folder as a launcher leaves it, and a local target of which parts are said."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.contract.process_stat import name_machine, start_of
from launcher.follow.loop import write_outcome
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import LAUNCHER_FILE, RunFolder, process_space
from launcher.targets.local.target import LocalTarget

MakeRun = Callable[..., tuple[RunFolder, LaunchPlan]]
OnLocal = Callable[..., None]
DEAD = 2**22 + 1
"""No process has this number."""


@pytest.fixture
def on_local(monkeypatch: pytest.MonkeyPatch) -> OnLocal:
    """Says what the local target does, in place of its own methods."""

    def say(**parts: Any) -> None:
        for name, part in parts.items():
            monkeypatch.setattr(LocalTarget, name, part)

    return say


@pytest.fixture
def make_run(make_plan: Callable[..., LaunchPlan], on_local: OnLocal, tmp_path: Path) -> MakeRun:
    """A run with these keys that ended by a cause, or that this process follows, or nobody.

    ``agent`` are settings of its agents. It has no processes: those that bear its id on this
    machine are another test's, and are not ended.
    """
    on_local(live_runs=lambda _: (), stop=lambda *_: None)

    def make(
        at: float = 1.0,
        *,
        name: str = "digits-0a1b2c",
        follows: bool = False,
        ended: Cause | None = None,
        agent: dict[str, Any] | None = None,
        **keys: Any,
    ) -> tuple[RunFolder, LaunchPlan]:
        plan = replace(make_plan(**keys), run_id=name, run_dir=f"{tmp_path}/{name}")
        if agent and plan.agent:
            plan = replace(plan, agent=replace(plan.agent, **agent))
        run = RunFolder(Path(plan.run_dir))
        run.create(plan, "", at, follows=follows)
        if ended:
            write_outcome(run, plan, Ending(cause=ended), at + 1)
        return run, plan

    return make


def mark(run: RunFolder, pid: int, elsewhere: str = "") -> None:
    """Says that this process follows the run; ``elsewhere``: one of another machine."""
    start = elsewhere or start_of(pid) or "then"
    at = {"sees": elsewhere or process_space(), "machine": elsewhere or name_machine()}
    (run.path / LAUNCHER_FILE).write_text(json.dumps({"pid": pid, "start": start, **at}))
