"""A run's folder as a launcher leaves it, and a local target of which parts are said."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.follow.loop import write_outcome
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.targets.local.target import LocalTarget

MakeRun = Callable[..., tuple[RunFolder, LaunchPlan]]


@pytest.fixture
def make_run(make_plan: Callable[..., LaunchPlan], tmp_path: Path) -> MakeRun:
    """A run with these keys that ended by a cause, or that this process follows, or nobody."""

    def make(
        at: float = 1.0,
        *,
        name: str = "digits-0a1b2c",
        follows: bool = False,
        ended: Cause | None = None,
        **keys: Any,
    ) -> tuple[RunFolder, LaunchPlan]:
        plan = replace(make_plan(**keys), run_id=name, run_dir=f"{tmp_path}/{name}")
        run = RunFolder(Path(plan.run_dir))
        run.create(plan, "", at, follows=follows)
        if ended:
            write_outcome(run, plan, Ending(cause=ended), at + 1)
        return run, plan

    return make


@pytest.fixture
def on_local(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says what the local target does, in place of its own methods."""

    def say(**parts: Any) -> None:
        for name, part in parts.items():
            monkeypatch.setattr(LocalTarget, name, part)

    return say
