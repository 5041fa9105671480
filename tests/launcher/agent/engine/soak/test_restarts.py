"""Workers that die, hang or fail the same way again, under real torch agents."""

import json
from pathlib import Path

import psutil
import pytest

from tests.launcher.agent.engine.claims.test_restarts import COLLECTIVE, STARTS
from tests.launcher.agent.place import LIMIT_S
from tests.waiting import wait_until


@pytest.mark.parametrize("start", STARTS)
def test_a_worker_that_is_killed_together_with_its_guard_is_named(place, start):
    place.write(COLLECTIVE)
    place.plan(nproc=2, start=start)
    process = place.start()
    victim = psutil.Process(place.pid_in("up-0-1"))
    place.pid_in("up-0-0")
    victim.parent().kill()
    assert process.wait(LIMIT_S) == 0
    assert not victim.is_running()
    assert place.outcome()["restarts"] == {"worker-fault": 1}
    told, _ = [e for e in place.events() if e["event"] == "worker-ended" and e["rank"] == 1]
    assert (told["exit_code"], told["cause"]) == (-9, "killed")


@pytest.mark.parametrize("start", STARTS)
def test_a_sibling_with_a_slow_sigterm_handler_does_not_hold_the_restart_up(place, start):
    place.write(
        "import os, signal, sys, time\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '1': sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('flag set'))\n"
        "open('up-' + os.environ['RANK'], 'w').write(str(os.getpid()))\n"
        "while True: time.sleep(1)\n"
    )
    place.plan(nproc=2, start=start, exit_grace_s=0.5)
    process = place.start()
    victim = place.pid_in("up-1")
    place.pid_in("up-0")
    psutil.Process(victim).kill()
    assert process.wait(LIMIT_S) == 0
    assert place.stdout() == "flag set\n"
    # Told by the guard: after torch's own 30 s there would be no guard to tell it.
    assert json.loads((place.rank(0) / "exit.json").read_text())["exit_code"] == -9


def test_a_preload_that_starts_threads_falls_back_with_one_line(place):
    site = place.folder / "site"
    place.write(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
        "site/spoils_forks.py",
    )
    place.env["PYTHONPATH"] = str(site)
    place.write("print('trained')")
    place.plan(start="fork", preload=("spoils_forks",))
    assert place.run() == 0
    assert place.console().count("start: fork is not possible here") == 1
    assert place.stdout() == "trained\n"


def test_a_preload_that_is_missing_is_named_and_left_out(place):
    place.write("import sys; print('torch' in sys.modules)")
    place.plan(start="fork", preload=("no_such_module",))
    assert place.run() == 0
    assert "preload: no_such_module cannot be imported" in place.console()
    assert place.stdout() == "True\n"


def test_logs_of_earlier_attempts_are_never_removed(place):
    place.write(
        "import os, sys\n"
        "count = os.environ['TORCHELASTIC_RESTART_COUNT']; print('attempt', count)\n"
        "sys.exit(0 if count == '2' else 10 + int(count))\n"
    )
    place.plan()
    assert place.run() == 0
    assert [place.stdout(attempt=n) for n in range(3)] == [f"attempt {n}\n" for n in range(3)]
    assert place.run() == 0
    assert place.stdout(attempt=3) == "attempt 0\n"
    assert Path(place.rank(attempt=5)).exists()


@pytest.mark.parametrize("start", ["fresh", "fork"])
def test_the_guard_of_a_worker_that_ended_well_does_not_hold_up_a_restart(place, start):
    place.write(
        "import os, pathlib, sys, time\n"
        "is_first = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0'\n"
        "if is_first and os.environ['RANK'] == '0':\n"
        "    while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
        "    sys.exit(1)\n"
    )
    place.plan(nproc=2, start=start)
    process = place.start()
    wait_until(lambda: (place.rank(1) / "exit.json").exists())
    (place.folder / "go").touch()
    assert process.wait(LIMIT_S) == 0, place.console()
    began = [event["at"] for event in place.events() if event["event"] == "workers-started"]
    ended = [event for event in place.events() if event["event"] == "worker-ended"]
    (failed,) = [event["at"] for event in ended if event["exit_code"]]
    # torch kills after 30 s what does not end.
    assert began[1] - failed < 20
