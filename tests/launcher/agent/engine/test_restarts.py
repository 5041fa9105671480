"""Workers that die, hang or fail the same way again, under real torch agents."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import psutil
import pytest

from launcher.contract import look
from tests.launcher.agent.place import LIMIT_S, Place
from tests.waiting import wait_until

STARTS = ["fresh", "fork"]
COLLECTIVE = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
count = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("sum", one.item(), "of attempt", count)
pathlib.Path(f"up-{count}-" + os.environ["RANK"]).write_text(str(os.getpid()))
while count == "0":
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("start", [pytest.param("fresh", marks=pytest.mark.slow), "fork"])
def test_a_killed_worker_is_started_again_with_the_others(place: Place, start: str) -> None:
    place.write(COLLECTIVE)
    place.plan(nproc=2, start=start)
    process = place.start()
    victim, sibling = place.pid_in("up-0-1"), place.pid_in("up-0-0")
    psutil.Process(victim).send_signal(signal.SIGKILL)
    assert process.wait(LIMIT_S) == 0
    assert place.stdout(0, attempt=0) == "sum 2.0 of attempt 0\n"
    assert place.stdout(0, attempt=1) == "sum 2.0 of attempt 1\n"
    assert not psutil.pid_exists(sibling)
    outcome = place.outcome()
    assert (outcome["reason"], outcome["attempts"]) == ("completed", 2)
    assert outcome["restarts"] == {"worker-fault": 1}
    ended = [e for e in place.events() if e["event"] == "worker-ended"]
    told = [(e["rank"], e["exit_code"], e["cause"]) for e in ended]
    assert told[:2] == [(1, -9, "signal"), (0, -15, "terminated")]
    assert sorted(told[2:]) == [(0, 0, "exit"), (1, 0, "exit")]
    assert json.loads((place.rank(1) / "exit.json").read_text())["exit_code"] == -9


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_a_worker_that_is_killed_together_with_its_guard_is_named(place: Place, start: str) -> None:
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
    assert (told["exit_code"], told["cause"]) == (-9, "signal")


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_a_sibling_with_a_slow_sigterm_handler_does_not_hold_the_restart_up(
    place: Place, start: str
) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_the_same_failure_again_and_again_ends_the_run_and_says_so(
    place: Place, start: str
) -> None:
    place.write("raise ValueError('no data')")
    place.plan(max_restarts=100, start=start)
    assert place.run() == 1
    outcome = place.outcome()
    assert (outcome["reason"], outcome["attempts"]) == ("restarts-exhausted", 3)
    assert "the same failure 3 times without progress" in place.console()
    assert outcome["first"]["exception"] == "ValueError: no data"
    error = json.loads((place.rank(attempt=2) / "error.json").read_text())
    assert error["message"]["message"] == "ValueError: no data"
    assert "no data" in (place.rank() / "stderr").read_text()


HANGING = """
import os, time
import torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
def train():
    for step in range(5):
        weight.grad = torch.ones(1)
        optimizer.step()
        time.sleep(0.05)
def wait_for_ever():
    time.sleep(600)
train()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    wait_for_ever()
print("steps done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_a_hang_is_restarted_after_every_rank_s_stacks_were_written(
    place: Place, start: str
) -> None:
    place.write(HANGING)
    place.plan(nproc=2, start=start, hang_min_s=1.5, hang_factor=3)
    assert place.run() == 0
    for rank in (0, 1):
        (hang,) = look.read_looks(place.node_dir)
        assert (hang.why, hang.attempt) == ("hang", 0)
        stacks = look.read_stacks(look.look_dir(place.node_dir, hang.id), rank)
        assert stacks
        assert "wait_for_ever" in [frame.function for frame in stacks.threads[0].frames]
    assert place.outcome()["restarts"] == {"hang": 1}
    assert place.stdout(attempt=1) == "steps done\n"
    events = [e["event"] for e in place.events()]
    assert events.count("first-step") == 2
    assert events.count("hang") == 1


@pytest.mark.slow
def test_a_hang_is_told_with_what_proved_it(place: Place) -> None:
    place.write(HANGING)
    place.plan(hang_min_s=1.5, hang_factor=3)
    assert place.run() == 0
    assert re.search(
        r"rank 0 has hung for \d+\.\d s \(limit 1\.5 s\): beat 6, at step 5, was its "
        r"last in two reads \d+\.\d s apart, between which each worker used \d\.\d% of a core; "
        r"stacks are in ",
        place.console(),
    )
    (hang,) = [event for event in place.events() if event["event"] == "hang"]
    assert (hang["rank"], hang["steps"], hang["beat"]) == (0, 5, 6)
    first, second = hang["read_at"]
    assert second - first >= 1.0
    assert hang["beat_at"] + hang["limit_s"] < first
    assert hang["silent_s"] == pytest.approx(second - hang["beat_at"], abs=0.5)
    assert hang["cpu_share"] < 0.05


@pytest.mark.slow
def test_a_preload_that_starts_threads_falls_back_with_one_line(place: Place) -> None:
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


@pytest.mark.slow
def test_a_preload_that_is_missing_is_named_and_left_out(place: Place) -> None:
    place.write("import sys; print('torch' in sys.modules)")
    place.plan(start="fork", preload=("no_such_module",))
    assert place.run() == 0
    assert "preload: no_such_module cannot be imported" in place.console()
    assert place.stdout() == "True\n"


@pytest.mark.slow
def test_logs_of_earlier_attempts_are_never_removed(place: Place) -> None:
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


@pytest.mark.parametrize("start", [pytest.param("fresh", marks=pytest.mark.slow), "fork"])
def test_the_guard_of_a_worker_that_ended_well_does_not_hold_up_a_restart(
    place: Place, start: str
) -> None:
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
