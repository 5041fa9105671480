"""What is printed for Docker does what the SDK does: compared by ``docker inspect``, and run."""

import os
import signal

import pytest

from tests.launcher.docker_place import LINGER
from tests.launcher.targets.docker.claims.test_printed import start_script
from tests.waiting import wait_until

pytestmark = pytest.mark.docker


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_the_script_takes_everything_along_when_it_is_ended(place, signum, code):
    plan = place.plan(LINGER)
    with start_script(plan, place.folder) as script:
        wait_until(lambda: place.console(plan) == b"up\n")
        # To all of it, as a terminal does.
        os.killpg(script.pid, signum)
        script.communicate(timeout=60)
    assert script.returncode == code
    assert place.held(plan.run_id) == []
