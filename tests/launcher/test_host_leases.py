"""Leases of one host: all or nothing, renewed, told stale from live."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from launcher.host.leases import HeldError, LeaseBook


def lease(run_id: str, *gpus: str, node_index: int = 0, slots: int = 0) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "node_index": node_index,
        "owner": "me@here",
        "launcher": "1",
        "gpus": list(gpus),
        "slots": slots,
        "detached": False,
    }


@pytest.fixture
def book(tmp_path: Path) -> LeaseBook:
    return LeaseBook(str(tmp_path / "leases"))


def test_what_is_held_is_not_given_again(book: LeaseBook) -> None:
    book.take(lease("a", "0", "1"), 10, None)
    with pytest.raises(HeldError) as error:
        book.take(lease("b", "1", "2"), 10, None)
    assert [held["run_id"] for held in error.value.leases] == ["a"]
    book.take(lease("b", "2"), 10, None)
    assert [(le["run_id"], le["live"]) for le in book.read()] == [("a", True), ("b", True)]


def test_slots_are_counted_up_to_the_hosts_limit(book: LeaseBook) -> None:
    book.take(lease("a", slots=2), 10, 3)
    book.take(lease("b", slots=1), 10, 3)
    with pytest.raises(HeldError):
        book.take(lease("c", slots=1), 10, 3)
    book.release("a")
    book.take(lease("c", slots=1), 10, 3)


def test_an_expired_lease_holds_nothing_and_is_shown_as_stale(book: LeaseBook) -> None:
    book.take(lease("a", "0"), -1, None)
    assert [le["live"] for le in book.read()] == [False]
    book.take(lease("b", "0"), 10, None)


def test_a_renewed_lease_goes_on(book: LeaseBook) -> None:
    book.take(lease("a", "0"), -1, None)
    assert book.renew("a", 10) == 1
    assert (book.seconds_left("a", 0) or 0) > 5
    with pytest.raises(HeldError):
        book.take(lease("b", "0"), 10, None)


def test_only_the_runs_own_nodes_are_given_back(book: LeaseBook) -> None:
    book.take(lease("a", "0"), 10, None)
    book.take(lease("a", "1", node_index=1), 10, None)
    book.release("a", (1,))
    book.release("a-longer-name")
    assert [le["node_index"] for le in book.read()] == [0]
    assert book.renew("a", 10, (1,)) == 0


def try_to_take(folder: str, run_id: str) -> bool:
    try:
        LeaseBook(folder).take(lease(run_id, "0"), 10, None)
    except HeldError:
        return False
    return True


def test_of_many_who_take_the_same_gpu_at_once_one_gets_it(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        got = pool.starmap(try_to_take, [(str(tmp_path / "le"), f"r{i}") for i in range(16)])
    assert sum(got) == 1
