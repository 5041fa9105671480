"""What real ranks tell each other, also where one of them fails, and what they agree on."""

import errno
import os
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from fabric_train.errors import InputError
from fabric_train.ranks import Agreement, Ranks, rank_zero_first
from tests.fabric_train.forked import run_forked

STALE = OSError(errno.ESTALE, "Stale file handle")


def test_what_fails_on_one_rank_fails_on_all_and_none_waits():
    def gather() -> str:
        def act() -> int:
            if dist.get_rank() == 1:
                raise STALE
            return 0

        try:
            return str(Ranks(30.0).gather_done(act))
        except OSError as error:
            return str(error.strerror)

    assert run_forked(gather, 2) == ["Stale file handle"] * 2


def test_what_rank_0_refuses_is_told_on_all_with_its_fix():
    def ask() -> str:
        def refuse() -> None:
            raise InputError("no such folder", "make it")

        try:
            Ranks(30.0).from_rank_zero(refuse)
        except InputError as error:
            return str(error)
        return "nothing was refused"

    assert run_forked(ask, 2) == [
        "no such folder\n  fix: make it",
        "rank 0 refuses: no such folder\n  fix: make it",
    ]


def test_a_storage_that_fails_on_one_rank_is_told_on_all(tmp_path):
    class Stale(type(tmp_path)):
        def exists(self) -> bool:
            if dist.get_rank() == 1:
                raise STALE
            return super().exists()

    def check() -> str:
        try:
            Ranks(30.0).check_shared(Stale(tmp_path))
        except OSError as error:
            return str(error.strerror)
        return "seen"

    assert isinstance(tmp_path, Path)
    assert run_forked(check, 2) == ["Stale file handle"] * 2


class RefusedError(OSError):
    """Pickle makes no second one of it, as of the error of a download."""

    def __init__(self, text: str, *, answer: object) -> None:
        super().__init__(text)


ERRORS = {
    "a plain one": OSError("no route"),
    "no pickle": RefusedError("no such repository", answer=1),
}
HEARD = {"a plain one": ["no route"] * 2}
HEARD["no pickle"] = ["no such repository", "RefusedError: no such repository"]


def fetch(folder: Path, local: bool, error: str = "") -> str:
    node = int(os.environ.get("RANK", 0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    name = f"done-{node}" if local else "done"
    try:
        with rank_zero_first(local=local):
            if (folder / name).exists():
                return "found"
            if error:
                raise ERRORS[error]
            time.sleep(0.2)
            (folder / name).touch()
            return "fetched"
    except (OSError, RuntimeError) as raised:
        return str(raised)


@pytest.mark.parametrize(
    ("local", "expected"), [(False, ["fetched"] + ["found"] * 3), (True, ["fetched", "found"] * 2)]
)
def test_one_rank_of_all_or_of_each_node_fetches_and_the_others_find_it(tmp_path, local, expected):
    assert run_forked(fetch, 4, tmp_path, local, nodes=2) == expected


@pytest.mark.parametrize("error", ERRORS)
def test_what_the_first_rank_raises_all_raise_and_none_waits(tmp_path, error):
    def decide() -> str:
        raise ERRORS[error]

    def ask() -> str:
        try:
            return Ranks(30.0).from_rank_zero(decide)
        except (OSError, RuntimeError) as raised:
            return str(raised)

    assert run_forked(fetch, 2, tmp_path, True, error, limit_s=30) == HEARD[error]
    assert run_forked(ask, 2, limit_s=30) == HEARD[error]


def test_without_a_process_group_the_block_just_runs(tmp_path):
    assert fetch(tmp_path, False) == "fetched"


@pytest.mark.parametrize("grouped", [False, True])
def test_alone_one_agrees_with_oneself_at_once(grouped):
    def agree() -> list[tuple[int, ...]]:
        agreement = Agreement(2, pause_s=1.0, clock=lambda: 0.0)
        heard = [agreement.settle()]
        for wish in (5, 7):
            agreement.propose((0, wish))
            heard.append(agreement.settle())
        return [*heard, agreement.settle()]

    heard = [(0, 0), (0, 5), (0, 7), (0, 0)]
    assert (run_forked(agree, 1) if grouped else [agree()]) == [heard]


def test_all_ranks_learn_the_highest_wish_at_the_same_call():
    def agree() -> list[tuple[int, ...]]:
        rank, agreement, heard = dist.get_rank(), Agreement(2), []
        for step in range(6):
            heard.append(agreement.settle())
            agreement.propose((int(step == 3 + rank), rank * step))
        return [*heard, agreement.settle(), agreement.settle()]

    learned = [(0, 0), (0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (0, 5), (0, 0)]
    assert run_forked(agree, 2) == [learned] * 2


@pytest.mark.parametrize(
    ("step_s", "late_step_s", "exchanged"),
    [
        # Four short steps of the slower rank take a second; one long one takes more.
        (0.125, 2.0, [1, 5, 9, 13, 17, *range(21, 30)]),
        (0.0, 0.0, [1, 9, 17, 25]),  # not divided by
    ],
)
def test_ranks_of_different_pace_exchange_at_the_same_calls_and_seldom_in_short_steps(
    step_s, late_step_s, exchanged
):
    def agree() -> list[int]:
        now = 0.0
        agreement = Agreement(1, pause_s=1.0, clock=lambda: now)
        heard = []
        for step in range(1, 31):
            now += step_s * (1 + dist.get_rank()) if step <= 20 else late_step_s
            heard += agreement.settle()
            agreement.propose((step,))
        return [step for step in heard if step]

    assert run_forked(agree, 2) == [exchanged] * 2


def test_what_does_not_hold_on_one_rank_does_not_hold_on_any():
    def ask() -> tuple[bool, bool]:
        agreement = Agreement(1)
        # Beside an exchange, which it must not disturb.
        agreement.propose((dist.get_rank(),))
        held = agreement.hold_on_all(dist.get_rank() == 0), agreement.hold_on_all(True)
        assert agreement.settle() == (1,)
        return held

    assert run_forked(ask, 2) == [(False, True)] * 2
