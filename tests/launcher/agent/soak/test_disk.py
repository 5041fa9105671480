"""What a full disk is, and that telling of it never fails."""

import pytest

from tests.launcher.agent.place import LIMIT_S


@pytest.mark.parametrize("start", ["fresh", "fork"])
def test_a_console_that_takes_nothing_ends_nobody(place, start):
    (place.folder / "console-0.log").symlink_to("/dev/full")
    place.write(
        "import os, sys\n"
        "print('x' * 100_000, flush=True)\n"
        "sys.exit(7 if os.environ['LAUNCHER_NODE_ATTEMPT'] == '0' else 0)\n"
    )
    place.plan(nproc=2, start=start)
    assert place.start().wait(LIMIT_S) == 0
    assert place.outcome()["restarts"] == {"worker-fault": 1}
    assert len(place.stdout(1, attempt=1)) == 100_001
