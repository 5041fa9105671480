"""SIGTERM to all processes of a node at once, as Slurm sends it: the training still commits."""

import signal

import psutil

from tests.launcher.agent.place import LIMIT_S
from tests.waiting import wait_until


def test_a_worker_that_alone_is_ended_by_sigterm_is_started_again(place):
    place.write(
        "import os, time\n"
        "open('pid', 'w').write(str(os.getpid()))\n"
        "while not os.path.exists('done'): time.sleep(0.05)\n"
    )
    place.plan()
    place.start()
    psutil.Process(place.pid_in("pid")).send_signal(signal.SIGTERM)
    wait_until(lambda: place.rank(attempt=1).exists())
    (place.folder / "done").touch()
    assert place.process.wait(LIMIT_S) == 0
    assert place.outcome()["restarts"] == {"worker-fault": 1}
