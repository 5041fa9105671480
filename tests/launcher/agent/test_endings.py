"""Real agents whose workers end at different times, with different codes: the run always ends."""

from __future__ import annotations

import random
import signal
from typing import Any

import psutil
import pytest

from launcher.contract import protocol
from launcher.contract.agent_settings import StoreEndpoint
from tests.launcher.agent.place import LIMIT_S, Place, free_port, wait_until

EARLY = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
if dist.get_rank() == 0:
    os._exit(0)
dist.all_reduce(one)
"""
"""Rank 0 ends well without joining the last collective; rank 1 fails in it."""

WAITING = """
import os, pathlib, time
index = os.environ["LAUNCHER_NODE_INDEX"]
pathlib.Path(f"up-{index}").write_text(str(os.getpid()))
while not pathlib.Path(f"go-{index}").exists():
    time.sleep(0.02)
"""
"""Each node ends when it is told to."""


def start(places: list[Place], *, port: int, **values: Any) -> None:
    """All nodes, around the first one's store; a lost one is noticed within two seconds."""
    conf = (
        ("fence_dir", str(places[0].folder)),
        ("last_call_s", "60"),
        ("detection_limit_s", "2"),
    )
    values = {"conf": conf, **values}
    for place in places:
        place.plan(min_nodes=len(places), max_nodes=len(places), port=port, **values)
        place.start()


def end_of(place: Place, limit_s: float = LIMIT_S) -> int:
    assert place.process is not None
    return place.process.wait(limit_s)


def let_go(place: Place) -> None:
    (place.folder / f"go-{place.index}").touch()


def all_up(places: list[Place]) -> None:
    for place in places:
        wait_until((place.folder / f"up-{place.index}").exists)


@pytest.mark.parametrize("method", ["fresh", pytest.param("fork", marks=pytest.mark.slow)])
@pytest.mark.parametrize("restarts", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_a_worker_that_fails_in_a_collective_another_has_left_ends_the_run(
    places: list[Place], method: str, restarts: int
) -> None:
    two = places[:2]
    two[0].write(EARLY)
    start(two, port=free_port(), max_restarts=restarts, start=method)
    assert end_of(two[1]) == 1, two[1].console()
    assert end_of(two[0]) == 0, two[0].console()
    outcome = two[1].outcome()
    assert outcome["reason"] == "training-failed"
    assert outcome["first"]["rank"] == 1
    assert "RuntimeError" in outcome["first"]["message"]
    assert outcome["restarts"].get("lost-peer", 0) == 0
    assert two[0].outcome()["reason"] == "completed"
    assert two[0].outcome()["attempts"] == 1


def test_the_host_of_the_store_stays_until_the_others_have_finished(
    places: list[Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = places[:2]
    two[0].write(WAITING)
    start(two, port=free_port())
    all_up(two)
    let_go(two[0])
    wait_until(lambda: (two[0].rank() / "exit.json").exists())
    # Two detection limits: nobody is taken for lost, and nobody goes.
    with pytest.raises(Exception, match="timed out"):
        end_of(two[0], 4.0)
    let_go(two[1])
    for place in two:
        assert end_of(place) == 0, place.console()
        assert place.outcome()["attempts"] == 1
        assert place.outcome()["restarts"] == {}


def test_a_finished_node_that_is_stopped_has_completed_and_the_others_go_on(
    places: list[Place],
) -> None:
    two = places[:2]
    two[0].write(WAITING)
    start(two, port=free_port())
    all_up(two)
    let_go(two[0])
    wait_until(lambda: (two[0].rank() / "exit.json").exists())
    assert two[0].process is not None
    two[0].process.send_signal(signal.SIGTERM)
    assert end_of(two[0]) == 0, two[0].console()
    assert two[0].outcome()["reason"] == "completed"
    assert two[0].outcome()["detail"] == protocol.OTHERS_GO_ON
    # The store went with it; there is nothing left that the other could need it for.
    with pytest.raises(Exception, match="timed out"):
        end_of(two[1], 4.0)
    let_go(two[1])
    assert end_of(two[1]) == 0, two[1].console()
    assert two[1].outcome()["attempts"] == 1


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_node_lost_after_another_has_finished_ends_a_run_of_fixed_size(
    places: list[Place], lost: int
) -> None:
    two = places[:2]
    ports = [free_port(), free_port()]
    stores = tuple(
        StoreEndpoint(host="127.0.0.1", port=port, node_index=index)
        for index, port in enumerate(ports)
    )
    two[0].write(WAITING)
    start(two, port=ports[0], stores=stores)
    all_up(two)
    other = two[1 - lost]
    let_go(other)
    wait_until(lambda: (other.rank(other.index) / "exit.json").exists())
    assert two[lost].process is not None
    two[lost].process.kill()
    assert end_of(other, 60) == 0, other.console()
    assert other.outcome()["attempts"] == 1


def test_a_node_that_freezes_after_another_has_finished_is_not_waited_for(
    places: list[Place],
) -> None:
    two = places[:2]
    two[0].write(WAITING)
    start(two, port=free_port())
    all_up(two)
    let_go(two[0])
    wait_until(lambda: (two[0].rank() / "exit.json").exists())
    assert two[1].process is not None
    frozen = psutil.Process(two[1].process.pid)
    # From the top: a supervisor that lives would continue its agent.
    for process in (frozen, *frozen.children(recursive=True)):
        process.suspend()
    assert end_of(two[0], 60) == 0, two[0].console()
    assert two[0].outcome()["detail"] == ""
    for process in (*frozen.children(recursive=True), frozen):
        process.kill()


def test_a_worker_that_leaves_no_record_counts_as_a_fault(place: Place) -> None:
    place.write("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n")
    place.plan(port=free_port(), max_restarts=2)
    assert place.run() == 1, place.console()
    assert place.outcome()["reason"] == "restarts-exhausted"


# -- random schedules ---------------------------------------------------------------------------
SCHEDULED = """
import json, os, pathlib, sys, time
rank = os.environ["RANK"]
works = json.loads(os.environ["WORKS"])[int(os.environ["LAUNCHER_NODE_INDEX"])]
done = pathlib.Path(f"done-{rank}")
assert not done.exists(), "finished work was started again"
time.sleep(works["seconds"])
tried = pathlib.Path(f"tried-{rank}")
times = int(tried.read_text()) if tried.exists() else 0
tried.write_text(str(times + 1))
if times < len(works["codes"]):
    code = works["codes"][times]
    os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
done.touch()
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_no_schedule_of_real_endings_hangs_or_starts_finished_work_again(
    places: list[Place], seed: int
) -> None:
    import json

    draw = random.Random(seed)
    size = draw.randint(2, 3)
    restarts = draw.choice([0, 1, 10])
    works = []
    for _ in range(size):
        codes = [draw.choice([1, 3, -9, -11])] * draw.randint(1, 2) if draw.random() < 0.4 else []
        works.append({"seconds": draw.choice([0.0, 0.5, draw.uniform(0, 8)]), "codes": codes})
    group = places[:size]
    group[0].write(SCHEDULED)
    start(
        group,
        port=free_port(),
        max_restarts=restarts,
        start=draw.choice(["fresh", "fork"]),
        env=(("WORKS", json.dumps(works)),),
    )
    codes = [end_of(place) for place in group]
    consoles = "\n".join(place.console() for place in group)
    assert "finished work was started again" not in consoles
    if not any(work["codes"] for work in works):
        assert codes == [0] * size, consoles
    elif restarts == 0:
        assert any(codes), consoles
