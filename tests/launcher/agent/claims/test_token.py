"""Nodes with a token: who does not know it takes no part in their run."""

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous import RendezvousConnectionError

from launcher.agent.engine.run import read_token
from launcher.agent.membership import candidates, wire
from launcher.agent.membership.candidates import Meeting
from launcher.agent.membership.client import Client
from launcher.agent.membership.group import Rules
from launcher.agent.membership.process import ask
from launcher.contract.clock import SystemClock
from launcher.contract.node_plan import AgentSettings, Elastic, NodeTask
from launcher.targets.agent_files import make_token
from tests.launcher.agent.conftest import end
from tests.launcher.agent.group import Group
from tests.launcher.agent.place import Place
from tests.launcher.node_plans import node_plan
from tests.waiting import wait_until

RUN = "r"
"""Of ``node_plans``."""
SAID_BY_THE_COORDINATOR = "was ended: it does not know the run's token"
SAID_BY_THE_NODE = "it ended the connection: another run, or another token"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[Group]:
    """Two nodes at work, of at most three; the first coordinates."""
    folder = tmp_path_factory.mktemp("token")
    places = [Place(folder, archive, index) for index in range(3)]
    group = Group(places, last_call_s="1")
    places[0].run_dir.mkdir()
    make_token(places[0].run_dir)
    for place in places[:2]:
        group.start(place)
    group.wait_for(*places[:2])
    yield group
    for place in places:
        end(place)


@pytest.fixture
def port(group: Group) -> int:
    return group.stores[0].port


def lines_of(place: Place, text: str) -> list[str]:
    return [line for line in place.console().splitlines() if text in line]


def test_a_stranger_can_neither_close_nor_join_a_run(group, port):
    first = group.places[0]
    run, before = RUN, group.seen(first)
    token = read_token(first.run_dir)
    for guess in ("", "guessed"):
        with pytest.raises(wire.WireError, match="another token"):
            ask("127.0.0.1", port, run, 2.0, guess)
    assert ask("127.0.0.1", port, run, 2.0, token) != ""
    rules = Rules(min_nodes=1, max_nodes=3, node_index=2, connect_timeout_s=1.0)
    client = Client("127.0.0.1", port, run, rules)
    client.say("close", reason="failed")
    with pytest.raises(RendezvousConnectionError, match=SAID_BY_THE_NODE):
        client.begin()
    # One who hopes that nobody looks, and says all at once.
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as way:
        hello = {"name": "2.x", "run": run, "nonce": "n", "proof": ""}
        way.sendall(wire.encode(hello) + wire.encode({"says": "close", "reason": "failed"}))
        assert len(way.makefile("rb").readlines()) == 1, "only the coordinator's greeting"
    assert group.seen(first) == before, "nobody has heard the stranger"
    (line,) = lines_of(first, SAID_BY_THE_COORDINATOR)
    assert "a connection from 127.0.0.1" in line


def test_a_node_with_another_token_says_so_and_one_with_the_token_comes_in(group):
    first, second, third = group.places
    own = third.run_dir
    third.run_dir = third.folder / "elsewhere"
    third.run_dir.mkdir()
    make_token(third.run_dir)
    group.start(third)
    wait_until(lambda: lines_of(third, SAID_BY_THE_NODE), third.console)
    assert len(lines_of(third, SAID_BY_THE_NODE)) == 1
    assert f"the coordinator at 127.0.0.1:{group.stores[0].port}" in third.console()
    end(third)
    third.run_dir = own
    third = group.start_again(third)
    group.wait_for(first, second, third)
    token = read_token(own)
    told = [place.console() for place in group.places]
    told += [path.read_text(errors="replace") for path in own.rglob("*") if path.is_file()]
    assert [text for text in told if token in text] == [token], "its own file alone"
    for process in first.processes():
        assert token not in str(process.cmdline()) + str(process.environ())
    assert stat.S_IMODE((own / "token").stat().st_mode) == 0o600


def test_a_token_that_may_not_be_read_ends_the_node_in_one_line(place):
    (place.run_dir / "token").mkdir(parents=True)
    place.write("")
    place.plan()
    assert place.run() == 2
    (line,) = lines_of(place, "the run's token cannot be read")
    assert "Is a directory" in line


def test_who_meets_in_a_folder_is_told_of_another_token(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "REACH_LIMIT_S", 1.0)
    task = NodeTask(node=node_plan(), settings=AgentSettings(meet_dir=str(tmp_path)))
    first = Meeting(task, SystemClock(), "one")
    first.plan_round()
    try:
        with pytest.raises(ConnectionError, match=r"another token.* cannot be reached from here"):
            Meeting(task, SystemClock(), "another").plan_round()
        second = Meeting(task, SystemClock(), "one")
        second.plan_round()
        assert second.served is None
    finally:
        assert first.served
        first.served.stop()
