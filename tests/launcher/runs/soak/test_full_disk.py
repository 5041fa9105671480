"""Runs whose folder lies on a small disk that fills up: what the launcher says, and leaves."""

import pytest

from tests.launcher.runs.claims.test_full_disk import FILL, TWO_NODES, disk, launcher
from tests.waiting import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
LATE = (
    FILL
    + """
try: fill()
except OSError: pass
"""
)


@pytest.mark.parametrize("detached", [False, True])
def test_a_run_that_ends_well_on_a_full_disk_has_succeeded(launcher, disk, detached):
    launcher.write(LATE, TWO_NODES)
    launcher.well("run", "job.yaml", "--on", "local", *(["--detach"] if detached else []))
    wait_until((disk.path / "latest/outcome.json").exists)
    assert launcher.outcome["state"] == "succeeded"
    wait_until(lambda: not launcher.processes())
    assert disk.leftovers() == []
