"""SIGTERM to all processes of a node at once, as Slurm sends it: the training still commits."""

import contextlib
import signal

import psutil
import pytest

from tests.launcher.agent.place import LIMIT_S, Place
from tests.waiting import wait_until

SPEAKER = """
import os, time
from pathlib import Path
from fabric_train.loop.preemption import Preemption, Wish, exit_on_sigterm
folder = Path(os.environ["LAUNCHER_NODE_DIR"])
exit_on_sigterm(folder)
preemption = Preemption(folder if os.environ["LOCAL_RANK"] == "0" else None)
preemption.announce()
print("up")
asked = folder / "stop-request"
while not (preemption.look() is Wish.STOP or asked.exists()):
    time.sleep(0.02)
print("asked")
time.sleep(1.0)  # the commit takes its time
preemption.answer(7, Path("c"))
print("committed")
time.sleep(600)
"""
LOADER = """
import torch
from torch.utils.data import DataLoader
from fabric_train import ignore_sigterm
loader = DataLoader(torch.arange(100_000), num_workers=2, worker_init_fn=ignore_sigterm)
batches = iter(loader)
next(batches), next(batches)  # one from each process: both ignore the signal by now
"""


def signal_all(place: Place, signum: int = signal.SIGTERM) -> None:
    """As proctrack does: every process below the step's first, and that one."""
    supervisor = psutil.Process(place.process.pid)
    for process in [*supervisor.children(recursive=True), supervisor]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signum)


@pytest.mark.parametrize(
    ("start", "signum"),
    [("fresh", signal.SIGINT), ("fork", signal.SIGTERM)],
)
def test_a_training_that_speaks_commits_though_it_was_signalled_itself(place, start, signum):
    # A script's own answer to Ctrl-C is KeyboardInterrupt.
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    place.write(ignored + SPEAKER)
    place.plan(nproc=2, start=start)
    place.start()
    wait_until(lambda: all("up" in place.stdout(rank) for rank in range(2)))
    signal_all(place, signum)
    assert place.process.wait(LIMIT_S) in (130, 143)
    assert place.stdout() == "up\nasked\ncommitted\n", place.console()
    acknowledged = [e["step"] for e in place.events() if e["event"] == "stop-acknowledged"]
    assert acknowledged == [7]
    assert place.outcome()["restarts"] == {}
    assert "Traceback" not in place.console()


def test_it_commits_though_it_is_signalled_again_and_again(place):
    place.write(SPEAKER)
    place.plan(identity="slurm")
    place.env["SLURM_PROCID"] = "0"
    place.start()
    wait_until(lambda: "up" in place.stdout())
    for count in range(4):
        signal_all(place)
        if count == 0:
            wait_until(lambda: "asked" in place.stdout())
    assert place.process.wait(LIMIT_S) == 143
    assert place.stdout() == "up\nasked\ncommitted\n", place.console()


def test_processes_that_read_data_do_not_keep_the_training_from_its_commit(place):
    place.write(LOADER + SPEAKER.replace("time.sleep(0.02)", "next(batches)"))
    place.plan()
    place.start()
    wait_until(lambda: "up" in place.stdout())
    signal_all(place)
    assert place.process.wait(LIMIT_S) == 143
    assert place.stdout() == "up\nasked\ncommitted\n", place.console()
