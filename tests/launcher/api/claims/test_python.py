"""``from launcher import Job, run``: real runs from scripts, threads, event loops and this test."""

import signal

from launcher import find
from tests.launcher.api.test_python import WAITS, is_up, place, python
from tests.launcher.runner import WAITING
from tests.waiting import wait_until

# -- whoever started it has gone, or was interrupted ----------------------------------------------


def test_a_run_goes_on_to_its_end_after_its_callers_death(place):
    place.write("import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)\n")
    caller = python(place, WAITS + "training.wait()\n")
    training = find(caller.stdout.readline().decode().strip())
    caller.kill()
    caller.wait()
    assert training.outcome is None
    assert training.status().launcher_pid is not None
    (place.folder / "go").touch()
    assert training.wait(timeout=60).state == "succeeded"


def test_an_interrupted_with_block_stops_the_run(place):
    place.write(WAITING)
    caller = python(place, WAITS + "with training:\n    training.wait()\n")
    training = find(caller.stdout.readline().decode().strip())
    wait_until(is_up(training))
    caller.send_signal(signal.SIGINT)
    assert caller.wait() != 0
    assert training.outcome.cause == "stop-requested"
