"""Real agents whose workers end at different times, with different codes: the run always ends."""

import signal
from typing import Any

import pytest

from launcher.contract import protocol
from tests.launcher.agent.place import LIMIT_S, Place, free_port
from tests.waiting import wait_until

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


@pytest.mark.parametrize("method", ["fresh", "fork"])
@pytest.mark.parametrize("restarts", [0, 3])
def test_a_worker_that_fails_in_a_collective_another_has_left_ends_the_run(
    places, method, restarts
):
    two = places[:2]
    two[0].write(EARLY)
    start(two, port=free_port(), max_restarts=restarts, start=method)
    assert end_of(two[1]) == 1, two[1].console()
    assert end_of(two[0]) == 0, two[0].console()
    outcome = two[1].outcome()
    assert outcome["cause"] == "training-failed"
    assert outcome["first"]["rank"] == 1
    assert "RuntimeError" in outcome["first"]["exception"]
    assert outcome["restarts"].get("lost-peer", 0) == 0
    assert two[0].outcome()["cause"] == "completed"
    assert two[0].outcome()["attempts"] == 1
    left = two[0].outcome()["ended_well"]
    assert (left["rank"], left["exit_code"]) == (0, 0)
    assert left["failed_at"] <= outcome["first"]["failed_at"] + 5
    (told,) = (e for e in two[0].events() if e["event"] == "worker-ended")
    assert (told["rank"], told["exit_code"]) == (0, 0)


def test_a_finished_node_with_the_store_stays_until_it_is_stopped_and_the_others_go_on(places):
    two = places[:2]
    two[0].write(WAITING)
    start(two, port=free_port())
    all_up(two)
    let_go(two[0])
    wait_until(lambda: (two[0].rank() / "exit.json").exists())
    # Two detection limits: nobody is taken for lost, and nobody goes.
    with pytest.raises(Exception, match="timed out"):
        end_of(two[0], 4.0)
    two[0].process.send_signal(signal.SIGTERM)
    assert end_of(two[0]) == 0, two[0].console()
    assert two[0].outcome()["cause"] == "completed"
    assert two[0].outcome()["detail"] == protocol.OTHERS_GO_ON
    # The store went with it; there is nothing left that the other could need it for.
    with pytest.raises(Exception, match="timed out"):
        end_of(two[1], 4.0)
    let_go(two[1])
    assert end_of(two[1]) == 0, two[1].console()
    assert two[1].outcome()["attempts"] == 1


def test_a_worker_that_leaves_no_record_counts_as_a_fault(place):
    place.write("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n")
    place.plan(port=free_port(), max_restarts=2)
    assert place.run() == 1, place.console()
    assert place.outcome()["cause"] == "restarts-exhausted"
