"""Nodes whose host is away: started when it is back, given up where the run cannot go on."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from launcher.contract.errors import TargetError
from launcher.targets.hosts import late_start as host_late
from launcher.targets.hosts.late_start import HostWait, LateStarts
from launcher.targets.hosts.ssh import RefusedByHostError

LIMIT_S = 20.0


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateStarts:
    monkeypatch.setattr(host_late, "RETRY_S", 0.01)
    return LateStarts()


class Away:
    """A host that answers at the last of its tries."""

    def __init__(self, *answers: TargetError | None) -> None:
        self._answers, self.is_over = [*answers], threading.Event()

    def __call__(self, wait: HostWait) -> None:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if len(self._answers) == 1:
            self.is_over.set()
        if answer is not None:
            raise answer


def add(
    late: LateStarts,
    start: Callable[[HostWait], None],
    *,
    may_give_up: bool,
    indices: frozenset[int] = frozenset({2}),
) -> None:
    late.add(
        set(indices),
        start,
        may_give_up=lambda waiting: may_give_up,
        is_final=lambda error: isinstance(error, RefusedByHostError),
    )


def wait_for_end(late: LateStarts) -> None:
    ended = threading.Event()
    for _ in range(int(LIMIT_S / 0.01)):
        if 2 not in late.waiting:
            return
        ended.wait(0.01)
    raise AssertionError("it still waits")


def test_a_node_starts_when_its_host_is_back(late: LateStarts) -> None:
    away = TargetError("gpu3: no route")
    add(late, Away(away, away, None), may_give_up=True)
    assert 2 in late.waiting
    assert 1 not in late.waiting
    wait_for_end(late)
    assert 2 not in late.lost


def test_a_host_that_refuses_is_asked_once(late: LateStarts) -> None:
    add(late, Away(RefusedByHostError("gpu3: held")), may_give_up=False)
    wait_for_end(late)
    assert 2 not in late.lost


def test_a_run_that_needs_the_host_gives_it_up_after_the_limit(
    late: LateStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_late, "BACK_LIMIT_S", 0.05)
    add(late, Away(TargetError("gpu3: no route")), may_give_up=True)
    wait_for_end(late)
    assert 2 in late.lost


def test_a_run_that_can_do_without_the_host_waits_on(
    late: LateStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_late, "BACK_LIMIT_S", 0.0)
    away = TargetError("gpu3: no route")
    start = Away(*[away] * 20, None)
    add(late, start, may_give_up=False)
    assert start.is_over.wait(LIMIT_S)
    wait_for_end(late)
    assert 2 not in late.lost


def test_whoever_ends_the_run_waits_for_a_start_that_is_under_way(late: LateStarts) -> None:
    under_way, told, ending = threading.Event(), list[str](), list[threading.Thread]()

    def start(wait: HostWait) -> None:
        with late.starting({2}, wait) as is_wanted:
            assert is_wanted
            ending.append(threading.Thread(target=lambda: (late.drop(), told.append("ended"))))
            ending[0].start()
            told.append("started")
        ending[0].join(LIMIT_S)
        with late.starting({2}, wait) as is_wanted:
            told.append("wanted" if is_wanted else "not wanted")
        under_way.set()

    add(late, start, may_give_up=False)
    assert under_way.wait(LIMIT_S)
    assert told == ["started", "ended", "not wanted"]


class OnTheWay:
    """A start that takes until it is told how it ends."""

    def __init__(self, late: LateStarts, indices: frozenset[int] = frozenset({2})) -> None:
        self._late, self._indices, self._error = late, indices, None
        self.began, self._may_end, self.ended = (threading.Event() for _ in range(3))
        self.was_wanted: bool | None = None

    def __call__(self, wait: HostWait) -> None:
        self.began.set()
        assert self._may_end.wait(LIMIT_S)
        try:
            with self._late.starting(set(self._indices), wait) as self.was_wanted:
                pass
            if self._error is not None:
                raise self._error
        finally:
            self.ended.set()

    def end(self, error: TargetError | None = None) -> None:
        self._error = error
        self._may_end.set()
        assert self.ended.wait(LIMIT_S)


def wait_for_threads(alive: set[threading.Thread]) -> None:
    """Until those that were started since have ended."""
    for thread in set(threading.enumerate()) - alive:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_a_node_that_waits_anew_waits_for_the_whole_limit(
    late: LateStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    monkeypatch.setattr(host_late, "BACK_LIMIT_S", -1.0)
    first = OnTheWay(late)
    add(late, first, may_give_up=True)
    assert first.began.wait(LIMIT_S)
    # The run is started anew: now node 0 waits too.
    late.drop()
    monkeypatch.setattr(host_late, "BACK_LIMIT_S", 2 * LIMIT_S)
    both = OnTheWay(late, frozenset({0, 2}))
    waiting = set(threading.enumerate())
    add(late, both, may_give_up=True, indices=frozenset({0, 2}))
    of_both = set(threading.enumerate()) - waiting
    first.end(TargetError("gpu3: no route"))
    wait_for_threads(before | of_both)
    assert late.lost == set()
    assert late.waiting == {0, 2}
    assert first.was_wanted is False
    assert both.began.wait(LIMIT_S)
    both.end()
    wait_for_threads(before)
    assert both.was_wanted
    assert late.waiting == set()


def test_what_a_host_refuses_an_earlier_wait_says_nothing_of_a_newer_one(
    late: LateStarts,
) -> None:
    before, first, second = set(threading.enumerate()), OnTheWay(late), OnTheWay(late)
    asked: list[TargetError] = []

    def is_final(error: TargetError) -> bool:
        asked.append(error)
        return True

    late.add({2}, first, may_give_up=lambda waiting: False, is_final=is_final)
    assert first.began.wait(LIMIT_S)
    of_first = set(threading.enumerate()) - before
    add(late, second, may_give_up=False)
    of_second = set(threading.enumerate()) - before - of_first
    first.end(RefusedByHostError("gpu3: held"))
    wait_for_threads(before | of_second)
    assert asked == []
    assert late.waiting == {2}
    second.end()
    wait_for_threads(before)


def test_nodes_that_waited_together_wait_no_longer_once_one_is_given_up(late: LateStarts) -> None:
    before, start = set(threading.enumerate()), OnTheWay(late, frozenset({0, 2}))
    add(late, start, may_give_up=False, indices=frozenset({0, 2}))
    assert start.began.wait(LIMIT_S)
    late.drop({2})
    start.end(TargetError("gpu1: no route"))
    wait_for_threads(before)
    assert start.was_wanted is False
    # Else nobody would start node 0, and nobody replace it.
    assert late.waiting == set()
