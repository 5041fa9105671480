"""What two real ranks tell each other where one of them fails."""

import errno
import os
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from fabric_train.ranks import Ranks, rank_zero_first
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
