"""A keeper that has a held node start its own."""

import json
import os
from pathlib import Path

import pytest

from launcher.contract import protocol
from launcher.contract.process_stat import start_of, write_record
from launcher.targets.hosts.program.keeper import KeptChild
from launcher.targets.hosts.program.messages import HeldNode, KeeperSpec


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """The folder of a held node that lives, and takes nothing."""
    held = tmp_path / "nodes/0/0"
    for folder in (held, tmp_path / "node"):
        folder.mkdir(parents=True)
    write_record(held, {"pid": os.getpid(), "start": start_of(os.getpid())})
    return held


def ask(held: Path, **more: object) -> KeptChild:
    run_dir = held.parents[2]
    request = {"task": "t", "record_dir": str(run_dir / "node/own"), **more}
    spec = KeeperSpec(
        run_id="r",
        node_index=0,
        node_dir=str(run_dir / "node"),
        argv=[],
        cwd="/",
        env={"NAME": "plain"},
        unset=[],
        secrets={},
        detached=False,
        stop_grace_s=1,
        held=HeldNode(run_dir=str(run_dir), request=json.dumps(request), user="u"),
    )
    return KeptChild(spec, {"KEY": "secret"})


def test_nobody_else_reads_what_a_held_node_is_asked(waiting):
    child = ask(waiting)
    assert child.poll() is None
    assert json.loads((waiting / protocol.HOLD_START).read_text())["env"] == [["KEY", "secret"]]
    assert (waiting / protocol.HOLD_START).stat().st_mode & 0o077 == 0


def test_a_container_gets_no_variables_of_its_host(waiting):
    ask(waiting, adds_env=True)
    assert json.loads((waiting / protocol.HOLD_START).read_text())["env"] == [["NAME", "plain"]]


def test_an_earlier_start_says_nothing_of_this_one(waiting):
    own = waiting.parents[2] / "node/own"
    own.mkdir()
    write_record(own, {"pid": 1, "exit_code": 1})
    assert ask(waiting).poll() is None


def test_a_node_that_is_ended_before_it_begins_does_not_begin(waiting):
    child = ask(waiting)
    child.end("r", 3.0)
    assert child.poll() == 137
    assert not (waiting / protocol.HOLD_START).exists()
    assert json.loads((waiting / protocol.HOLD_END).read_text()) == {"run_id": "r", "grace_s": 3.0}


def test_a_node_has_the_code_that_the_held_node_tells(waiting):
    child, node = ask(waiting), waiting.parents[2] / "node/own"
    write_record(node, {"pid": 1, "start": "of the fork"})
    child.end("r", 3.0)
    assert child.poll() is None
    write_record(node, {"pid": 1, "exit_code": 143})
    assert child.poll() == 143


def test_a_node_ends_with_the_held_node(waiting):
    child = ask(waiting)
    write_record(waiting.parents[2] / "node/own", {"pid": 1, "start": "of the fork"})
    assert child.poll() is None
    write_record(waiting, {"pid": os.getpid(), "exit_code": 143})
    assert child.poll() == 137
    assert child.why == "its node of the hold has ended"


def test_a_node_ends_at_once_where_the_folder_of_its_hold_is_gone(tmp_path):
    (tmp_path / "node").mkdir()
    child = ask(tmp_path / "nodes/0/0", record_dir=str(tmp_path / "node/own"))
    assert child.poll() == 137
    assert child.why == "its node of the hold has ended"


def test_a_node_begins_in_the_held_node_that_replaces_a_lost_one(waiting):
    child = ask(waiting)
    write_record(waiting, {"pid": os.getpid(), "exit_code": 137})
    assert child.poll() is None
    (waiting.parent / "1").mkdir()
    assert child.poll() is None
    assert (waiting.parent / "1" / protocol.HOLD_START).exists()
    (waiting.parents[2] / protocol.OUTCOME_FILE).touch()
    assert child.poll() == 137
    assert child.why == "its node of the hold has ended"
    assert not (waiting.parent / "1" / protocol.HOLD_START).exists()
