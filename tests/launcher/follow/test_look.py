"""Looks that are asked of nodes, by files in their folders."""

import pytest

from launcher.contract.records import parse_record, read_object
from launcher.contract.reports.look import LOOK_FILE, LOOK_REQUEST, LookRequest, look_dir
from launcher.follow.look import NO_ANSWER, NOT_STARTED, ask_nodes, keep_look, present_nodes
from launcher.runs.folder import RunFolder
from tests.launcher.looks import write_look
from tests.waiting import StoppedClock

REQUEST = LookRequest(id="look-1", steps=3)


def test_each_present_node_is_asked_and_those_that_did_not_answer_say_why(tmp_path):
    run = RunFolder(tmp_path)
    for place in ("0/0", "0/1", "1/0", "2/0/attempt-0/rank-2", "3/0", "4/0"):
        (tmp_path / "nodes" / place).mkdir(parents=True)
    (run.node_dir(1, 0) / "outcome.json").touch()
    (run.node_dir(4, 0) / LOOK_REQUEST).mkdir()
    assert present_nodes(run) == {
        index: run.node_dir(index, int(index == 0)) for index in (0, 2, 3, 4)
    }

    def answer(now: float) -> None:
        request = run.node_dir(0, 1) / LOOK_REQUEST
        if now > 0.5 and request.exists():
            assert parse_record(LookRequest, read_object(request)) == REQUEST
            request.unlink()
            write_look(run.node_dir(0, 1), REQUEST.id, 0)
        if now > 4.9:  # taken at the last moment
            (run.node_dir(2, 0) / LOOK_REQUEST).unlink(missing_ok=True)

    clock = StoppedClock(on_sleep=answer)
    told = ask_nodes(run, REQUEST, 5.0, clock)
    assert {index: why for index, why in told.items() if index != 4} == {
        2: NO_ANSWER,
        3: NOT_STARTED,
    }
    assert told[4].startswith("the request cannot be written: Is a directory: ")
    assert 5.0 <= clock.now < 5.1
    assert not list(tmp_path.glob(f"nodes/[023]/*/{LOOK_REQUEST}")), "nobody needs a later answer"
    (run.node_dir(2, 0) / "outcome.json").touch()
    (run.node_dir(3, 0) / "outcome.json").touch()
    (run.node_dir(4, 0) / "outcome.json").touch()
    clock = StoppedClock(on_sleep=answer)
    assert ask_nodes(run, REQUEST, 5.0, clock) == {}
    assert clock.now < 0.1, "it is there already"


def test_a_look_from_elsewhere_is_kept_whole_or_not_at_all(tmp_path):
    run = RunFolder(tmp_path)
    for life in (0, 2):
        run.node_dir(1, life).mkdir(parents=True)
    assert keep_look(run, 1, "look-1", {"a.json": "{}"}) == NO_ANSWER
    files = {LOOK_FILE: "{}", "rank-0.stacks.json": "[]", "../b.json": "", "c.txt": ""}
    for _ in range(2):
        assert keep_look(run, 1, "look-1", files) == ""
    folder = look_dir(run.node_dir(1, 2), "look-1")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        LOOK_FILE: "{}", "rank-0.stacks.json": "[]",
    }  # fmt: skip
    assert keep_look(run, 7, "look-1", files) == ""
    assert look_dir(run.node_dir(7, 0), "look-1").is_dir()
    (look_dir(run.node_dir(1, 2), "look-2") / "rank-0.stacks.json").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        keep_look(run, 1, "look-2", files)
    assert not (look_dir(run.node_dir(1, 2), "look-2") / LOOK_FILE).exists()
