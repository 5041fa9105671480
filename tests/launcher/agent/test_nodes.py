"""Several nodes under agents: a node leaves, fails, or takes the store with it."""

from __future__ import annotations

import signal
from pathlib import Path
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
        backend="roster",
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


@pytest.mark.parametrize("backend", [pytest.param("c10d", marks=pytest.mark.slow), "roster"])
def test_the_job_goes_on_when_the_node_with_the_store_is_killed(
    places: list[Place], backend: str
) -> None:
    two = places[:2]
    ports = [free_port(), free_port()]
    stores = tuple(
        StoreEndpoint(host="127.0.0.1", port=port, node_index=index)
        for index, port in enumerate(ports)
    )
    two[0].write(WAITING)
    conf = (("fence_dir", str(two[0].folder)), ("last_call_s", "60")) if backend == "roster" else ()
    start(two, "script.py", "1", port=ports[0], backend=backend, stores=stores, conf=conf)
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
    settings = {"backend": "roster", "start": "fork", "conf": tuple(conf.items())}
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


SLOW_TO_LEAVE = """
import os, sys, threading, time
NAME = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
def patch():
    while not hasattr(sys.modules.get(NAME), "DynamicRendezvousHandler"):
        time.sleep(0.01)
    kind = sys.modules[NAME].DynamicRendezvousHandler
    real = kind.shutdown
    kind.shutdown = lambda self: (time.sleep(2), real(self))[1]
os.register_at_fork(after_in_child=lambda: threading.Thread(target=patch, daemon=True).start())
"""
"""What a busy machine does to a node: it closes its rendezvous two seconds after its work."""


@pytest.mark.slow
def test_a_good_end_under_c10d_prints_no_backtrace_of_a_node_that_leaves_later(
    places: list[Place], tmp_path: Path
) -> None:
    two, port = places[:2], free_port()
    two[0].write("print('done')")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SLOW_TO_LEAVE)
    two[1].env["PYTHONPATH"] = str(tmp_path / "site")
    for place in two:
        place.plan("script.py", min_nodes=2, max_nodes=2, port=port)
        place.start()
    for place in two:
        assert place.process is not None
        assert place.process.wait(LIMIT_S) == 0, place.console()
        assert "frame #" not in place.console()
        assert "failed to shutdown the rendezvous" not in place.console()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["c10d", "roster"])
def test_a_run_that_is_given_up_on_one_node_ends_on_all_with_that_reason(
    places: list[Place], backend: str
) -> None:
    two = places[:2]
    two[0].write(
        "import os, time\n"
        "if os.environ['LAUNCHER_NODE_INDEX'] == '1': raise ValueError('no data')\n"
        "time.sleep(600)\n"
    )
    conf = (("last_call_s", "60"),) if backend == "roster" else ()
    start(two, "script.py", port=free_port(), backend=backend, conf=conf, max_restarts=0)
    for place in two:
        assert place.process is not None
    assert two[1].process.wait(LIMIT_S) == 1  # type: ignore[union-attr]
    assert two[1].outcome()["first"]["message"] == "ValueError: no data"
    if backend == "roster":
        assert two[0].process.wait(LIMIT_S) == 1  # type: ignore[union-attr]


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
    start(two, "script.py", port=free_port(), backend="roster", conf=conf, **limits)
    for place in two:
        assert place.process is not None
        assert place.process.wait(LIMIT_S) == 0, place.console()
        assert "hang" not in [event["event"] for event in place.events()]


@pytest.mark.slow
def test_a_store_that_nobody_serves_is_unreachable_and_worth_a_retry(places: list[Place]) -> None:
    places[1].write("print('never')")
    places[1].plan(
        backend="roster", port=free_port(), max_nodes=2, conf=(("connect_timeout_s", "1"),)
    )
    assert places[1].run() == 193
    assert places[1].outcome()["reason"] == "rendezvous-unreachable"
