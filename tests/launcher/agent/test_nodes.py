"""Several nodes under agents: a node leaves, fails, or takes the store with it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from launcher.contract.agent_settings import StoreEndpoint
from tests.launcher.agent.place import LIMIT_S, Place, free_port, wait_until

WAITING = """
import os, pathlib, sys, time
world = os.environ["WORLD_SIZE"]
pathlib.Path(f"up-{world}-" + os.environ["LAUNCHER_NODE_INDEX"]).touch()
print("world", world)
print("meets at", os.environ["LAUNCHER_RDZV_ENDPOINT"])
while world != sys.argv[1]:
    time.sleep(0.05)
"""


def start(places: list[Place], *command: str, port: int, **settings: Any) -> None:
    for place in places:
        place.plan(*command, max_nodes=len(places), port=port, **settings)
        place.start()


def all_up(places: list[Place], world: int) -> None:
    for place in places:
        wait_until((place.folder / f"up-{world}-{place.index}").exists)


@pytest.mark.parametrize("start_method", [pytest.param("fresh", marks=pytest.mark.slow), "fork"])
def test_a_preempted_node_leaves_and_the_others_re_form_without_a_restart_used(
    places: list[Place], start_method: str
) -> None:
    places[0].write(WAITING)
    port = free_port()
    start(
        places,
        "script.py",
        "2",
        port=port,
        start=start_method,
        max_restarts=0,
        conf=(("fence_dir", str(places[0].folder)), ("last_call_s", "60")),
    )
    all_up(places, 3)
    assert places[2].process is not None
    places[2].process.send_signal(signal.SIGTERM)
    assert places[2].process.wait(LIMIT_S) == 143
    for place in places[:2]:
        assert place.process is not None
        assert place.process.wait(LIMIT_S) == 0, place.console()
        assert place.outcome()["restarts"] == {"membership": 1}
    assert {p.stdout(p.index, attempt=1) for p in places[:2]} == {
        f"world 2\nmeets at 127.0.0.1:{port}\n"
    }


def test_the_job_goes_on_when_the_node_with_the_store_is_killed(places: list[Place]) -> None:
    two = places[:2]
    ports = [free_port(), free_port()]
    stores = tuple(
        StoreEndpoint(host="127.0.0.1", port=port, node_index=index)
        for index, port in enumerate(ports)
    )
    two[0].write(WAITING)
    conf = (("fence_dir", str(two[0].folder)), ("last_call_s", "60"))
    start(two, "script.py", "1", port=ports[0], stores=stores, conf=conf)
    all_up(two, 2)
    assert two[0].process is not None
    assert two[1].process is not None
    two[0].process.kill()
    assert two[1].process.wait(LIMIT_S) == 0, two[1].console()
    assert "store-lost; starting again (1)" in two[1].console()
    assert "store-lost" in [event["event"] for event in two[1].events()]
    assert two[1].outcome()["reason"] == "completed"
    told = [line for line in two[1].console().splitlines() if "meets at" in line]
    assert [line.rpartition(":")[2] for line in told] == [str(port) for port in ports]


REDUCING = """
import os, pathlib
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
pathlib.Path(f"up-{dist.get_world_size()}-" + os.environ["LAUNCHER_NODE_INDEX"]).touch()
while dist.get_world_size() > 1:
    dist.all_reduce(one)
"""


def test_a_node_killed_in_a_collective_costs_the_others_no_restart(places: list[Place]) -> None:
    two = places[:2]
    two[0].write(REDUCING)
    # At the default limit, which the closed connections make unimportant.
    conf = {"fence_dir": str(two[0].folder), "last_call_s": "60"}
    settings = {"start": "fork", "conf": tuple(conf.items())}
    start(two, port=free_port(), max_restarts=0, **settings)
    all_up(two, 2)
    assert two[1].process is not None
    two[1].process.kill()
    assert two[0].process is not None
    assert two[0].process.wait(LIMIT_S) == 0, two[0].console()
    outcome = two[0].outcome()
    assert outcome["attempts"] == 2
    assert set(outcome["restarts"]) <= {"lost-peer", "membership"}
    how = "node 1 is lost: its connections closed and its port refuses"
    assert how in two[0].console()
    assert how in [e["detail"] for e in two[0].events() if e["event"] == "node-lost"]


@pytest.mark.slow
def test_a_run_that_is_given_up_on_one_node_ends_on_all_with_that_reason(
    places: list[Place],
) -> None:
    two = places[:2]
    two[0].write(
        "import os, time\n"
        "if os.environ['LAUNCHER_NODE_INDEX'] == '1': raise ValueError('no data')\n"
        "time.sleep(600)\n"
    )
    start(two, "script.py", port=free_port(), conf=(("last_call_s", "60"),), max_restarts=0)
    for place in reversed(two):
        assert place.process is not None
        assert place.process.wait(LIMIT_S) == 1
    assert two[1].outcome()["first"]["message"] == "ValueError: no data"


STEPPING = """
import os, time, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(2 if os.environ["LAUNCHER_NODE_INDEX"] == "0" else 60):
    weight.grad = torch.ones(1)
    optimizer.step()
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_a_worker_that_has_ended_is_not_taken_for_hanging_while_others_go_on(
    places: list[Place],
) -> None:
    two = places[:2]
    two[0].write(STEPPING)
    conf = (("fence_dir", str(two[0].folder)), ("last_call_s", "60"))
    limits = {"hang_min_s": 1.0, "hang_factor": 2}
    start(two, "script.py", port=free_port(), conf=conf, **limits)
    for place in two:
        assert place.process is not None
        assert place.process.wait(LIMIT_S) == 0, place.console()
        assert "hang" not in [event["event"] for event in place.events()]


@pytest.mark.slow
def test_a_store_that_nobody_serves_is_unreachable_and_worth_a_retry(places: list[Place]) -> None:
    places[1].write("print('never')")
    places[1].plan(port=free_port(), max_nodes=2, conf=(("connect_timeout_s", "1"),))
    assert places[1].run() == 193
    assert places[1].outcome()["reason"] == "rendezvous-unreachable"
