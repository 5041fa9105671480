"""What a host says of a node whose keeper is gone, with an engine that answers what it is told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.contract.keeper_record import read_record, write_record
from launcher.contract.process_stat import start_of
from launcher.targets.hosts.program import keeper, processes
from launcher.targets.hosts.program.leases import LeaseBook
from launcher.targets.hosts.program.messages import KeeperSpec, Lease

LEASE = Lease(run_id="r", node_index=0, owner="me", gpus=["0"], slots=0)


class Node:
    """A node's folder as a reboot leaves it: its keeper's record names a process that is gone."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir, self.folder = state_dir, state_dir / "runs/r/nodes/0/0"
        self.folder.mkdir(parents=True)
        self.book = LeaseBook(str(state_dir / "leases"))
        write_record(self.folder, {"pid": os.getpid(), "start": "another boot:1"})
        spec = KeeperSpec(
            run_id="r",
            node_index=0,
            node_dir=str(self.folder),
            lease_dir=str(state_dir / "leases"),
            lease=LEASE,
            container="r-0",
            comes_back=True,
            detached=True,
            stop_grace_s=1.0,
            argv=["docker", "run"],
            cwd="/",
            env={},
            unset=[],
            secrets={"TOKEN": "hush"},
        )
        keeper.write_spec(spec)

    @property
    def state(self) -> str:
        return keeper.read_state(self.folder).state


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


class Engine:
    """Stands in for the docker command line; ``started`` are the keepers' specs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: keeper.ContainerState | None = None
        self.removed: list[str] = []
        self.started: list[dict[str, Any]] = []
        monkeypatch.setattr(keeper, "inspect", lambda name: self.found)
        monkeypatch.setattr(keeper, "remove_container", self.removed.append)
        monkeypatch.setattr(processes, "start_keeper", self.start_keeper)

    def start_keeper(self, argv: Any, env: Any, spec: bytes, log: Path) -> int:
        self.started.append(json.loads(spec))
        return os.getpid()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


def test_a_container_that_came_back_gets_keeper_and_lease_again(node: Node, engine: Engine) -> None:
    assert node.state == "pending"
    engine.found = keeper.ContainerState(is_there=True, is_running=True)
    keeper.revive(node.state_dir, "program")
    keeper.revive(node.state_dir, "program")
    (spec,) = engine.started
    assert spec["argv"] == ["docker", "attach", "--no-stdin", "--sig-proxy=false", "r-0"]
    assert [lease.live for lease in node.book.read()] == [True]
    assert node.state == "running"
    assert start_of(os.getpid()) == read_record(node.folder)["start"]


def test_a_node_waits_for_its_engine_and_not_for_ever(node: Node, engine: Engine) -> None:
    keeper.revive(node.state_dir, "program")
    assert node.state == "pending"
    record = read_record(node.folder)
    write_record(node.folder, {**record, "waits_since": 0})
    keeper.revive(node.state_dir, "program")
    assert node.state == "missing"


def test_a_container_that_is_gone_is_not_waited_for(node: Node, engine: Engine) -> None:
    engine.found = keeper.ContainerState(is_there=False)
    keeper.revive(node.state_dir, "program")
    assert node.state == "missing"
    assert engine.started == []


def test_what_another_has_taken_meanwhile_stays_theirs(node: Node, engine: Engine) -> None:
    node.book.take(LEASE.having(run_id="other"), 10, None)
    engine.found = keeper.ContainerState(is_there=True, is_running=True)
    keeper.revive(node.state_dir, "program")
    assert engine.removed == ["r-0"]
    assert engine.started == []
    told = keeper.read_state(node.folder)
    assert (told.state, told.detail) == (
        "exited",
        "while its host was away, other took what it had there",
    )


def test_secrets_are_not_kept_for_the_next_keeper(node: Node) -> None:
    assert "hush" not in (node.folder / keeper.SPEC).read_text()


@pytest.mark.parametrize(
    ("outcome", "own"),
    [
        (None, False),
        ({"exit_code": 0}, True),
        ({"exit_code": 1}, True),
        ({"exit_code": 143}, False),
    ],
)
def test_an_end_of_the_nodes_own_is_told_from_one_by_a_signal(
    node: Node, outcome: dict[str, int] | None, own: bool
) -> None:
    if outcome is not None:
        (node.folder / "outcome.json").write_text(json.dumps(outcome))
    assert keeper.has_ended_by_itself(node.folder) == own
