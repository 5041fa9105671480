"""Workers that die, hang or fail the same way again, under real torch agents."""

import json
import signal

import psutil
import pytest

from launcher.contract.reports import look
from tests.launcher.agent.place import LIMIT_S

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


@pytest.mark.parametrize("start", ["fresh", "fork"])
def test_a_killed_worker_is_started_again_with_the_others(place, start):
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
    assert (outcome["cause"], outcome["attempts"]) == ("completed", 2)
    assert outcome["restarts"] == {"worker-fault": 1}
    ended = [e for e in place.events() if e["event"] == "worker-ended"]
    told = [(e["rank"], e["exit_code"], e["cause"]) for e in ended]
    assert told[:2] == [(1, -9, "killed"), (0, -15, "terminated")]
    assert sorted(told[2:]) == [(0, 0, "completed"), (1, 0, "completed")]
    assert json.loads((place.rank(1) / "exit.json").read_text())["exit_code"] == -9


@pytest.mark.parametrize("start", STARTS)
def test_the_same_failure_again_and_again_ends_the_run_and_says_so(place, start):
    place.write("raise ValueError('no data')")
    place.plan(max_restarts=100, start=start)
    assert place.run() == 1
    outcome = place.outcome()
    assert (outcome["cause"], outcome["attempts"]) == ("restarts-exhausted", 3)
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


@pytest.mark.parametrize("start", STARTS)
def test_a_hang_is_restarted_after_every_rank_s_stacks_were_written(place, start):
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
