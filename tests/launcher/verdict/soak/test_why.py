"""``launcher why`` as a person types it, on real runs of local processes."""

import os
import tempfile
from pathlib import Path

import pytest

from launcher.api.why import read_named_run
from launcher.runs.folder import RunFolder
from launcher.verdict.verdict import decide_verdict
from tests.launcher.runner import WAITING, Runner
from tests.launcher.verdict.claims import test_why as claims
from tests.launcher.verdict.test_why import LOCAL
from tests.waiting import wait_until


def test_a_run_that_goes_on_is_told_to_and_a_part_of_its_folder_too(launcher):
    launcher.write(WAITING)
    launcher(*LOCAL, "--detach")
    run = launcher.folder / "runs" / launcher.run_ids()[0]
    wait_until(lambda: (run / "up-0").exists())
    told = launcher("why").stdout
    stacks = f"python -m launcher stacks {run.name} tells where its ranks are"
    assert told == f"{run.name} (running): no failure so far; {stacks}\n"
    launcher("stop")
    part = launcher.folder / "a part"
    (part / "nodes/0").mkdir(parents=True)
    (run / "nodes/0/0").rename(part / "nodes/0/0")
    assert "plan.json is not there" in launcher("why", "a part").stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may become another user")
def test_of_a_run_of_another_user_that_goes_on_its_folder_tells():
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        launcher = Runner(Path(root))
        launcher.write(WAITING)
        launcher(*LOCAL, "--detach")
        run = RunFolder(launcher.folder / "runs" / launcher.run_ids()[0])
        wait_until(lambda: (run.path / "up-0").exists())
        os.seteuid(65534)
        try:
            told = decide_verdict(read_named_run(run))
        finally:
            os.seteuid(0)
        launcher("stop")
    assert (told.state, told.what[:7]) == ("running", "no fail")


@pytest.mark.parametrize("what", [what for what in claims.STOPPED_WHILE if what not in claims.HERE])
def test_of_a_hang_that_is_stopped_the_rank_is_named_too(launcher, what):
    claims.test_of_a_hang_that_is_stopped_the_rank_is_named_too(launcher, what)
