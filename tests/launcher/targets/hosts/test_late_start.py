"""Nodes whose host is away: started when it is back, given up where the run cannot go on."""

from __future__ import annotations

import threading

import pytest

from launcher.contract.errors import TargetError
from launcher.targets.hosts import late_start as host_late
from launcher.targets.hosts.late_start import LateStarts
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

    def __call__(self) -> None:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if len(self._answers) == 1:
            self.is_over.set()
        if answer is not None:
            raise answer


def add(late: LateStarts, start: Away, *, may_give_up: bool) -> None:
    late.add(
        {2},
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
    add(late, Away(TargetError("gpu3: no route")), may_give_up=False)
    told: list[str] = []
    with late.starting({2}) as is_wanted:
        assert is_wanted
        ending = threading.Thread(target=lambda: (late.drop(), told.append("ended")))
        ending.start()
        told.append("started")
    ending.join(LIMIT_S)
    assert told == ["started", "ended"]
    with late.starting({2}) as is_wanted:
        assert not is_wanted
