"""The watchdog looks at workers that hang while they are still there. A process in their place."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.engine.attempts import Attempts
from launcher.agent.engine.look import Looker
from launcher.agent.engine.watchdog import Watchdog
from launcher.agent.ledger import AgentLedger
from launcher.agent.worker import recorder
from launcher.agent.worker_exit import write_exit
from launcher.contract.agent_settings import AgentSettings
from launcher.contract.clock import SystemClock
from launcher.contract.look import hear_look, look_dir, read_looks, read_stacks
from launcher.contract.worker_end import WorkerExit
from tests.waiting import wait_until

WORKER = """
import sys, time
from pathlib import Path
from launcher.agent.heartbeat import HeartbeatWriter
writer = HeartbeatWriter(Path(sys.argv[1]))
writer.step()
def hangs():
    print("hangs", flush=True)
    time.sleep(600)
hangs()
"""


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    node_dir, scratch = tmp_path / "nodes/0/0", tmp_path / "scratch"
    scratch.mkdir()
    return Attempts(node_dir, tmp_path, scratch)


@pytest.fixture
def worker(attempts: Attempts) -> Iterator[subprocess.Popen[bytes]]:
    (place,) = attempts.begin({0: 0})
    argv = (sys.executable, "-c", WORKER, str(place.heartbeat))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_a_hang_is_looked_at_before_its_workers_are_killed(attempts, worker, tmp_path):
    clock = SystemClock()
    ledger = AgentLedger(tmp_path / "ledger.jsonl", clock, node_index=0, incarnation=0)
    settings = AgentSettings(hang_min_s=0.2, hang_max_s=0.5)
    watchdog = Watchdog(attempts, settings, ledger, Looker(attempts, clock), clock)

    def is_killed() -> bool:
        watchdog.look()
        time.sleep(0.05)  # two looks are at least a second apart, whatever the load
        return worker.poll() is not None

    wait_until(is_killed)
    (seen,) = read_looks(attempts.node_dir)
    assert (seen.why, [one.rank for one in seen.ranks]) == ("hang", [0])
    stacks = read_stacks(look_dir(attempts.node_dir, seen.id), 0)
    assert [frame.function for frame in stacks.threads[0].frames][:1] == ["hangs"]


@pytest.mark.parametrize(("why", "is_told"), [("stop", True), ("asked", False)])
def test_a_look_before_a_stop_says_where_each_rank_is(attempts, worker, capfd, why, is_told):
    Looker(attempts, SystemClock()).take(why)
    told = hear_look(capfd.readouterr().err)
    heard = [(one.look.rank, one.stacks.threads[0].frames[0].function) for one in told]
    assert heard == ([(0, "hangs")] if is_told else [])


def test_workers_that_ended_well_are_told_apart_from_those_that_failed(attempts):
    for place, code in zip(attempts.begin({0: 0, 1: 1, 2: 2}), (0, 1, -9), strict=True):
        seen = {"attempt": 0, "rank": place.rank, "local_rank": place.rank, "exit_code": code}
        place.folder.mkdir(parents=True, exist_ok=True)
        write_exit(place.folder, WorkerExit(**seen, failed_at=1.0, was_asked=False))
    assert [end.rank for end in attempts.end()] == [1, 2]
    assert [end.rank for end in attempts.ended_well] == [0]


class EndsMeanwhile(SystemClock):
    """Time stands still; in the first pause a worker ends."""

    def __init__(self, exit_file: Path) -> None:
        self._exit_file = exit_file

    def monotonic(self) -> float:
        return 100.0

    def sleep(self, seconds: float) -> None:
        assert not self._exit_file.exists(), "it waits for a worker that has ended"
        self._exit_file.touch()


def test_after_a_loss_a_worker_that_ends_is_not_waited_for(attempts, worker):
    (place,) = attempts.workers
    asking = recorder.asking(place.heartbeat)
    os.mkfifo(asking)
    reader = os.open(asking, os.O_RDONLY | os.O_NONBLOCK)
    folder = Looker(attempts, EndsMeanwhile(place.exit_file)).take("loss", stacks=False)
    os.close(reader)
    assert folder is not None
    (seen,) = read_looks(attempts.node_dir)
    assert "no answer in time" in seen.ranks[0].no_collectives


@pytest.mark.parametrize("written", ["", "step 7\n"], ids=["nothing", "a line"])
def test_a_look_says_how_long_ago_a_worker_wrote_its_last_line(attempts, worker, written):
    clock = SystemClock()
    place = attempts.workers[0]
    (place.folder / "stderr").write_text(written)
    if written:
        os.utime(place.folder / "stderr", (clock.wall() - 100.0,) * 2)
    Looker(attempts, clock).take("asked", stacks=False)
    ((seen,),) = (one.ranks for one in read_looks(attempts.node_dir))
    assert 100.0 <= seen.wrote_s < 700.0 if written else seen.wrote_s == -1.0
