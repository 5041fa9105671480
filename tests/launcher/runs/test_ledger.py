"""Lines of a ledger, whoever wrote them, and what follows from their two clocks."""

import json
from dataclasses import replace
from typing import Any

import pytest

from launcher.runs.folder import RunFolder
from launcher.runs.ledger import (
    LAUNCHER_SOURCE,
    LedgerEvent,
    by_launchers_clock,
    count_restarts,
    find_jump,
    parse_event,
    read_ledger,
    read_moments,
    read_train_ledger,
    tell_moment,
)

LINE = {"source": "agent", "event": "x", "node_index": 1, "incarnation": 2, "at": 9.5}
LINE |= {"monotonic_s": 3, "more": "é"}


def event(name: str = "x", at: float = 0.0, since: float = 0.0, **values: Any) -> LedgerEvent:
    return LedgerEvent(
        name=name, node_index=1, incarnation=0, at=at, monotonic_s=since, values=values
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "is_read"),
    [
        ({}, True),
        ({"source": "train"}, False),
        ({"event": 3}, False),
        ({"at": "9.5"}, False),
        ({"monotonic_s": None}, False),
        ({"node_index": [1]}, False),
        ({"incarnation": {}}, False),
    ],
)
def test_a_line_with_another_source_or_without_its_place_is_no_event(changes, is_read, tmp_path):
    line = json.dumps(LINE | changes)
    assert (parse_event(line, "agent") is not None) == is_read
    (tmp_path / "ledger").write_text(f"torn\n[]\n{line}\n")
    assert len(read_ledger(tmp_path / "ledger")) == is_read
    assert read_ledger(tmp_path / "none") == ()


def test_an_event_has_its_place_its_times_and_the_whole_line():
    told = LedgerEvent(
        name="x", node_index=1, incarnation=2, at=9.5, monotonic_s=3, values=LINE
    )  # fmt: skip
    assert parse_event(json.dumps(LINE), "agent") == told
    ahead = by_launchers_clock([told, replace(told, node_index=0)], {0: 0.0, 1: 2.5})
    assert [one.at for one in ahead] == [7.0, 9.5]


def test_a_told_moment_is_read_back_and_a_failed_write_ends_nothing(tmp_path):
    for text in ("starts", "ends"):
        tell_moment(RunFolder(tmp_path), 1, 2, at=9.5, text=text, key="k")
    first, second = read_moments(RunFolder(tmp_path))
    assert (first.name, first.node_index, first.incarnation) == (LAUNCHER_SOURCE, 1, 2)
    assert (first.at, first.monotonic_s, first.values["key"]) == (9.5, 9.5, "k")
    assert [one.values["text"] for one in (first, second)] == ["starts", "ends"]
    assert first.values["schema"] == 1
    tell_moment(RunFolder(tmp_path / "gone/by"), 1, 2, at=9.5, text="x")
    assert not (tmp_path / "gone").exists()


def test_the_trainings_ledger_is_that_of_rank_0(tmp_path):
    (tmp_path / "ledger").mkdir()
    for name in ("train-0-0-0-0", "train-1-0-1-0", "agent-0-0"):
        line = json.dumps(LINE | {"source": name.partition("-")[0], "name": name})
        (tmp_path / f"ledger/{name}.jsonl").write_text(line)
    names = [event.values["name"] for event in read_train_ledger(RunFolder(tmp_path))]
    assert names == ["train-0-0-0-0", "train-1-0-1-0"]


def test_restarts_count_after_which_workers_did_start_again():
    began, again = event("workers-started"), event("restart", cause="hang")
    other = event("restart", cause="membership")
    for events, told in (
        ([again, began], {}),
        ([began, again], {}),
        ([began, again, began, event("hang"), began], {"hang": 1}),
        ([began, again, other, began, again, began, other, began], {"membership": 2, "hang": 1}),
    ):
        assert count_restarts(events) == told


def test_a_wall_clock_jumped_if_it_moved_against_the_monotonic_one():
    def moved(*times: tuple[float, float], name: str = "x") -> float:
        return find_jump([event(at=0, since=0), *(event(name, *one) for one in times)])

    assert moved((5.0, 0.0), (6.0, 1.0)) == 0.0
    assert moved((6.0, 0.0), (-60.0, 1.0)) == 6.0
    assert moved((1.0, 1.0), (-60.0, 2.0)) == -62.0
    assert moved((60.0, 0.0), name="worker-ended") == 0.0, "told later than it happened"
    assert find_jump([]) == 0.0
