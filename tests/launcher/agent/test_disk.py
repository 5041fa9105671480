"""What a full disk is, and that telling of it never fails."""

import errno
import os
from pathlib import Path

import pytest

from launcher.agent import disk
from launcher.agent.atomic_write import write_atomically
from launcher.agent.ledger import AgentLedger
from launcher.contract.clock import SystemClock


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_bytes_no_inodes_and_no_quota_are_a_full_disk(number):
    error = OSError(number, os.strerror(number))
    assert disk.is_full(error)
    assert disk.says_full(f"OSError: {error}")
    outer = RuntimeError("save failed")
    outer.__cause__ = error
    assert disk.is_full(outer)


@pytest.mark.parametrize("error", [None, OSError(errno.EACCES, "denied"), ValueError("28")])
def test_other_errors_are_not(error):
    assert not disk.is_full(error)
    assert not disk.says_full(str(error))


@pytest.mark.parametrize("said", ["unable to allocate shared memory(shm)", "unable to write to"])
def test_shared_memory_that_is_full_is_no_full_disk(said):
    end = f"file </torch_15_253034065_0>: {os.strerror(errno.ENOSPC)} (28)"
    assert not disk.says_full(f"RuntimeError: {said} for {end}")


def test_a_full_disk_is_told_by_its_mount_and_the_three_largest_entries(tmp_path):
    (tmp_path / "deep").mkdir()
    for number in range(1, 5):
        (tmp_path / f"deep/f{number}").write_bytes(bytes(number << 20))
    said = "OSError: [Errno 28] No space left on device: '/dev/shm/gone/file'"
    told = disk.describe(said, tmp_path)
    assert told.startswith("the disk at /dev/shm is full: ")
    largest = "deep/f4 (4.0 MiB), deep/f3 (3.0 MiB), deep/f2 (2.0 MiB)"
    assert told.endswith(f"; largest in the run folder: {largest}")


def test_a_disk_with_room_is_not_called_full_for_one_that_nothing_names(tmp_path):
    told = disk.describe("OSError: [Errno 28] No space left on device", tmp_path)
    assert told == "a disk is full, but the error does not name it; the run folder's disk has room"


def test_a_file_that_a_full_disk_refuses_is_named(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", refuse)
    path = tmp_path / "outcome.json"
    with pytest.raises(OSError, match=f"No space left on device: '{path}'$"):
        write_atomically(path, "")
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_goes_on_behind_a_line_that_a_full_disk_cut_off(tmp_path):
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


def test_a_ledger_makes_its_folder_when_it_can_but_never_the_run_folder(tmp_path):
    (tmp_path / "ledger").write_text("in the way")
    ledger = AgentLedger(tmp_path / "ledger/a.jsonl", SystemClock(), node_index=0, incarnation=0)
    ledger.write("lost")
    (tmp_path / "ledger").unlink()
    ledger.write("told")
    assert '"event": "told"' in (tmp_path / "ledger/a.jsonl").read_text()
    removed = tmp_path / "run/ledger/a.jsonl"
    AgentLedger(removed, SystemClock(), node_index=0, incarnation=0).write("agent-ended")
    assert not (tmp_path / "run").exists()
