"""``launcher why`` as a person types it, on real runs of local processes."""

import json
import shutil
import time

import pytest

from launcher.agent.stopping import SILENT_S
from tests.launcher.verdict.test_why import LOCAL, TWO
from tests.waiting import wait_until


def test_a_killed_rank_is_likely_but_not_certainly_that(launcher):
    launcher.write("import os\nos.kill(os.getpid(), 9)\n")
    launcher(*LOCAL)
    told = json.loads(launcher("why", "--json").stdout)
    assert (told["cause"], told["certainty"], told["rank"]) == ("killed", "likely", 0)
    assert told["runbook"] == "python -m launcher docs killed"
    assert told["run_cause"] == launcher.outcome["cause"]  # one word for both


WAITS_FOR_A_LOCK = """\
import datetime, threading
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1)
lock = threading.Lock()
for step in range(100):
    optimizer.step()
    if step == 50 and dist.get_rank() == 1:
        lock.acquire()
        lock.acquire()
    dist.all_reduce(torch.ones(4))
"""


def test_of_a_hang_the_rank_is_named_that_the_others_wait_for(launcher):
    launcher.write(WAITS_FOR_A_LOCK, TWO)
    launcher(*LOCAL, "--set", "agent.hang_min_s=3", "--set", "agent.hang_max_s=4")
    headline, where, *_ = launcher("why").stdout.splitlines()
    assert "deadlock, likely: rank 1 stands at train.py:10; rank 0: all_reduce" in headline
    assert where == "  where: rank 1 on node 0, train.py:10"
    assert "rank 1 has not entered all_reduce" in launcher("why", "--evidence").stdout


def test_what_was_found_of_a_hang_stays_when_a_person_stops_the_run(launcher):
    launcher.write(WAITS_FOR_A_LOCK, TWO)
    process = launcher.start(*LOCAL)

    def found() -> str:
        return launcher("why").stdout.partition(": ")[2].split(":")[0]

    wait_until(lambda: "likely" in found(), limit_s=90)
    assert found() == "deadlock, likely"
    process.terminate()
    process.communicate(timeout=60)
    assert launcher("why").stdout.splitlines()[0].split(": ")[2] == "deadlock, likely"


STOPPED_WHILE = {
    "a barrier of rank 0 alone": (
        """\
import os, pathlib, queue, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pathlib.Path(f"up-{rank}").touch()
if rank == 0:
    dist.barrier()
queue.Queue().get()
""",
        "deadlock, likely: rank 1 stands at Queue.get <- train.py:7; rank 0: barrier <- train.py:6",
        "  where: rank 1 on node 0, train.py:7",
    ),
    "other collectives": (
        """\
import pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pathlib.Path(f"up-{rank}").touch()
if rank == 0:
    dist.recv(torch.ones(4), src=1)
dist.barrier()
""",
        "mismatched-collective, likely: rank 0 stands at recv <- train.py:6; rank 1: barrier",
        "  where: rank 0 on node 0, train.py:6",
    ),
    "a thread that never ends": (
        """\
import os, pathlib, threading
pathlib.Path("up-" + os.environ["RANK"]).touch()
threading.Thread(target=threading.Event().wait, name="loader").start()
""",
        "deadlock, likely: rank 0 has ended but for its thread loader",
        "",
    ),
    "a thread that raised": (
        """\
import os, pathlib, queue, threading
pathlib.Path("up-" + os.environ["RANK"]).touch()
full = queue.Queue()
def fill():
    raise KeyError("shard-1")
threading.Thread(target=fill, daemon=True).start()
full.get()
""",
        "script-error, likely: KeyError: 'shard-1'",
        "  where: rank 0 on node 0, train.py:5",
    ),
    "a computation": (
        """\
import os, pathlib, time
pathlib.Path("up-" + os.environ["RANK"]).touch()
while True: sum(range(100_000))
""",
        "stopped-by-user, likely: stop-requested",
        "",
    ),
}


HERE = ("other collectives", "a thread that raised", "a computation")


@pytest.mark.parametrize("what", HERE)
def test_of_a_hang_that_is_stopped_the_rank_is_named_too(launcher, what):
    script, told, where = STOPPED_WHILE[what]
    launcher.write(script, TWO)
    process = launcher.start(*LOCAL)
    up = [launcher.folder / f"up-{rank}" for rank in range(2)]
    wait_until(lambda: all(path.exists() for path in up))
    silent_since = max(path.stat().st_mtime for path in up)
    wait_until(lambda: time.time() - silent_since > SILENT_S + 1)
    began = time.monotonic()
    process.terminate()
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 15
    assert process.returncode == 143, errors
    said = launcher("why").stdout
    assert told in said
    assert where in said
    # Of a pod only the console is left.
    for looks in launcher.folder.glob("runs/*/nodes/*/*/looks"):
        shutil.rmtree(looks)
    assert told in launcher("why").stdout
    is_hang = not told.startswith("stopped")
    assert ("  why  " in errors.decode() + output.decode()) is is_hang
