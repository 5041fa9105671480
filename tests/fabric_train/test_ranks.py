"""What two real ranks tell each other where one of them fails."""

from __future__ import annotations

import errno
from pathlib import Path

import torch.distributed as dist

from fabric_train.ranks import Ranks
from tests.fabric_train.forked import run_forked

STALE = OSError(errno.ESTALE, "Stale file handle")


def test_what_fails_on_one_rank_fails_on_all_and_none_waits():
    def gather() -> str:
        def act() -> int:
            if dist.get_rank() == 1:
                raise STALE
            return 0

        try:
            return str(Ranks(dist.group.WORLD).gather_done(act))
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
            Ranks(dist.group.WORLD).check_shared(Stale(tmp_path))
        except OSError as error:
            return str(error.strerror)
        return "seen"

    assert isinstance(tmp_path, Path)
    assert run_forked(check, 2) == ["Stale file handle"] * 2
