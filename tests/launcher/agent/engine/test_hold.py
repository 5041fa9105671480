"""What a held node decides of its run and its user. The rest is shown by real holds."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from launcher.agent import processes
from launcher.agent.engine import hold
from launcher.agent.engine.hold import Holder
from launcher.contract import protocol
from launcher.contract.node_plan import AgentSettings, Mount, NodeTask
from launcher.contract.process_stat import read_record
from tests.launcher.node_plans import node_plan

RUN = 4711


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Holder:
    """It holds a node on which run ``a`` goes on; ``sent`` has what its processes were sent."""
    settings = AgentSettings(hold_idle_s=600.0)
    made = Holder(NodeTask(node=node_plan(log_dir=str(tmp_path)), settings=settings), tmp_path, "a")
    made._child, made._run_id, made._grace_s, made._record_dir = RUN, "a", 3.0, tmp_path
    made.sent, made.ended = [], {}
    monkeypatch.setattr(processes, "reap", lambda: made.ended)
    monkeypatch.setattr(processes, "end_children", lambda: made.sent.append("others"))
    monkeypatch.setattr(processes, "send", lambda pid, signum: made.sent.append(signum.name))
    return made


def look(holder: Holder, now: float, user: str = "a", **end: object) -> list[str]:
    """What is sent in one look; ``end`` is a request to end the run."""
    holder.sent.clear()
    if end:
        (holder._folder / protocol.HOLD_END).write_text(json.dumps(end))
    holder._look_after_child(now, user, holder._list_requests())
    assert not (holder._folder / protocol.HOLD_END).exists()
    return list(holder.sent)


def test_a_held_node_warns_once_before_its_idle_limit_and_ends_at_it(holder, capfd):
    assert [holder._check_idle(now) for now in (0.0, 299.0, 300.0)] == [None] * 3
    assert capfd.readouterr().err == ""
    assert [holder._check_idle(now) for now in (301.0, 302.0, 599.9)] == [None] * 3
    assert capfd.readouterr().err == "[agent] nothing runs here; the hold ends in 5 min\n"
    assert holder._check_idle(600.0) == "nothing was run for 10 min"
    holder._idle_limit_s = 3600.0
    assert holder._check_idle(3600.0) == "nothing was run for 60 min"
    holder._idle_since, holder._idle_limit_s = 600.0, 300.0
    assert holder._check_idle(700.0) is None
    assert capfd.readouterr().err == "", "its limit is no longer than the warning"


@pytest.mark.parametrize(
    ("folder", "mounted", "swept"),
    [
        (protocol.CONTAINER_RUN_DIR, "/data", ["/tmp", "/dev/shm"]),
        (protocol.CONTAINER_RUN_DIR, "/tmp", ["/dev/shm"]),
        ("/home/x/runs", "/data", []),
    ],
)
def test_what_runs_leave_is_swept_in_containers_alone(folder, mounted, swept):
    node = node_plan(log_dir=f"{folder}/nodes/0/0", mounts=(Mount(source="/", target=mounted),))
    assert list(map(str, Holder(NodeTask(node=node), Path(folder), "a")._swept)) == swept


def test_a_run_s_launcher_is_its_user_while_it_shows_life(holder, tmp_path):
    assert holder._find_user(0.0) == ""
    user = tmp_path / protocol.HOLD_USER
    user.write_text('{"run_id": "a", "owner": "x"}')
    assert [holder._find_user(now) for now in (100.0, 159.0, 160.0)] == ["a", "a", ""]
    os.utime(user, (1e9, 1e9))
    assert [holder._find_user(now) for now in (200.0, 259.0)] == ["a", "a"]
    user.unlink()
    assert [holder._find_user(now) for now in (259.5, 260.0)] == ["a", ""]


def test_a_run_without_its_launcher_is_ended_and_killed_after_its_grace(holder, capfd):
    assert look(holder, 9.0) == []
    assert [look(holder, now, "b") for now in (10.0, 19.9, 20.0)] == [["SIGTERM"], [], ["SIGKILL"]]
    assert capfd.readouterr().err.count("the launcher of the run on this node is gone") == 1
    holder._child, holder._kill_at = 0, None
    assert look(holder, 21.0, "") == []


@pytest.mark.parametrize(
    ("requests", "sent"),
    [
        ([("a", 4.0), None, None, None, None], [["SIGTERM"], [], [], [], ["SIGKILL"]]),
        ([("b", 0.0), None], [[], []]),
        ([("a", 0.0)], [["SIGKILL"]]),
        ([("a", 9.0), ("a", 0.5), None], [["SIGTERM"], [], ["SIGKILL"]]),
        ([("a", 1.0), ("a", 9.0)], [["SIGTERM"], ["SIGKILL"]]),
        ([("a", "x"), None], [[], []]),
    ],
)
def test_a_run_ends_when_its_own_launcher_asks(holder, requests, sent):
    asked = [dict(zip(("run_id", "grace_s"), one or (), strict=False)) for one in requests]
    assert [look(holder, float(now), **one) for now, one in enumerate(asked)] == sent


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3 << 8, 3), (signal.SIGKILL, 137)])
def test_a_run_that_has_ended_leaves_a_record_and_nothing_else(holder, status, code, tmp_path):
    shared = tmp_path / "tmp"
    (shared / "before").mkdir(parents=True)
    holder._swept, holder._files_before = [shared], {shared / "before"}
    (shared / "left/deep").mkdir(parents=True)
    (shared / "file").touch()
    holder.ended = {RUN + 1: 0}
    assert look(holder, 1.0) == []
    holder.ended = {RUN: int(status)}
    assert look(holder, 2.0) == ["others"]
    assert read_record(tmp_path) == {"pid": RUN, "exit_code": code}
    assert [path.name for path in shared.iterdir()] == ["before"]
    assert holder._child == 0


def test_a_request_that_cannot_be_read_starts_no_run(holder, tmp_path, capfd):
    holder._child = 0
    (tmp_path / protocol.HOLD_START).write_text("{}")
    holder._start()
    assert capfd.readouterr().err.startswith("[agent] a run cannot be started here: ")
    assert (holder._child, holder._list_requests()) == (0, [])


def test_packages_that_were_installed_since_are_noticed(tmp_path, monkeypatch):
    folders = [tmp_path / "lib/site-packages", tmp_path / "own"]
    for folder in folders:
        folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*map(str, folders), "/gone/dist-packages"])
    before = hold._state_of_packages()
    os.utime(folders[1], (1, 1))
    assert hold._state_of_packages() == before
    os.utime(folders[0], (1, 1))
    assert hold._state_of_packages() == (1.0,)
