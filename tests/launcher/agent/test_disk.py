"""What a full disk is, how it is waited for, and that telling of it never fails."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from launcher.agent import disk
from launcher.agent.ledger import AgentLedger
from launcher.contract.clock import SystemClock
from launcher.contract.errors import DiskFullError
from tests.launcher.agent.place import LIMIT_S, Place


def full_error(number: int = errno.ENOSPC, path: Path | None = None) -> OSError:
    return OSError(number, os.strerror(number), *([str(path)] if path else []))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_bytes_no_inodes_and_no_quota_are_a_full_disk(number: int) -> None:
    assert disk.is_full(full_error(number))
    assert disk.says_full(f"OSError: {full_error(number)}")
    outer = RuntimeError("save failed")
    outer.__cause__ = full_error(number)
    assert disk.is_full(outer)


@pytest.mark.parametrize("error", [None, OSError(errno.EACCES, "denied"), ValueError("28")])
def test_other_errors_are_not(error: BaseException | None) -> None:
    assert not disk.is_full(error)
    assert not disk.says_full(str(error))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_a_full_disk_refuses_is_tried_again_and_told_once(tmp_path: Path, number: int) -> None:
    errors, told, pauses = [full_error(number, tmp_path)] * 3, list[str](), list[float]()

    def act() -> str:
        if errors:
            raise errors.pop()
        return "done"

    done = disk.retry_while_full(
        act, (tmp_path,), limit_s=60, pause=pauses.append, tell=told.append
    )
    assert (done, pauses) == ("done", [disk.PAUSE_S] * 3)
    (line,) = told
    assert re.search(rf"the disk of {tmp_path} is full: .* free; .*; waiting for room", line)


def test_a_wait_for_room_has_an_end_that_names_what_fills_the_disk(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/big").write_bytes(bytes(3 << 20))

    def act() -> None:
        raise full_error()

    with pytest.raises(DiskFullError, match=r"most in deep/big \(3.0 MiB\)"):
        disk.retry_while_full(act, (tmp_path,), limit_s=0, pause=print, tell=print)


def test_other_errors_are_not_waited_for(tmp_path: Path) -> None:
    def act() -> None:
        raise PermissionError(errno.EACCES, "denied")

    with pytest.raises(PermissionError):
        disk.retry_while_full(act, (tmp_path,), limit_s=60, pause=print, tell=print)


def test_a_search_for_what_fills_a_disk_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (tmp_path / f"f{number}").write_bytes(bytes(1 << 16))
    monkeypatch.setattr(disk, "LOOK_LIMIT_ENTRIES", 10)
    assert "the run folder holds 640.0 KiB of it" in disk.describe(tmp_path, tmp_path)


def test_a_ledger_goes_on_behind_a_line_that_a_full_disk_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "ledger/agent.jsonl"
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    ledger = AgentLedger(path, SystemClock(), node_index=0, incarnation=0)
    ledger.write("lost")
    path.unlink()
    path.write_text('{"event": "cut o')
    ledger.write("told")
    cut, told = path.read_text().splitlines()
    assert cut.endswith("cut o")
    assert '"event": "told"' in told


def test_a_ledger_whose_folder_could_not_be_made_makes_it_later(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("in the way")
    ledger = AgentLedger(tmp_path / "ledger/a.jsonl", SystemClock(), node_index=0, incarnation=0)
    ledger.write("lost")
    (tmp_path / "ledger").unlink()
    ledger.write("told")
    assert '"event": "told"' in (tmp_path / "ledger/a.jsonl").read_text()


@pytest.mark.parametrize("start", ["fresh", pytest.param("fork", marks=pytest.mark.slow)])
def test_a_console_that_takes_nothing_ends_nobody(place: Place, start: str) -> None:
    (place.folder / "console-0.log").symlink_to("/dev/full")
    place.write(
        "import os, sys\n"
        "print('x' * 100_000, flush=True)\n"
        "sys.exit(7 if os.environ['LAUNCHER_NODE_ATTEMPT'] == '0' else 0)\n"
    )
    place.plan(nproc=2, start=start)
    assert place.start().wait(LIMIT_S) == 0
    assert place.outcome()["restarts"] == {"worker-fault": 1}
    assert len(place.stdout(1, attempt=1)) == 100_001


def test_a_ledger_makes_no_run_folder_anew_that_was_removed(tmp_path: Path) -> None:
    ledger = AgentLedger(
        tmp_path / "run/ledger/a.jsonl", SystemClock(), node_index=0, incarnation=0
    )
    ledger.write("agent-ended")
    assert not (tmp_path / "run").exists()
