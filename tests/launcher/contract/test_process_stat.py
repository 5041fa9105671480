"""What is said about processes, and the record of the one that runs a node."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.contract import process_stat
from launcher.contract.process_stat import RECORD, RECORD_BYTES, read_record, write_record
from tests.waiting import wait_until


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a name that looks like more fields."""
    program = tmp_path / "a) Z 1 (b"
    shutil.copy("/bin/sleep", program)
    process = subprocess.Popen((program, "60"))
    yield process
    process.kill()
    process.wait()


def test_a_process_is_known_from_its_start_to_its_end(child):
    pid = child.pid
    start = process_stat.start_of(pid)
    mark = {"pid": pid, "start": start}
    assert start
    assert start.startswith(f"{process_stat.boot_id()}:")
    assert start != process_stat.start_of(os.getpid())
    assert process_stat.parent_of(pid) == os.getpid()
    assert process_stat.lives(mark)
    for other in ({}, {"pid": pid}, {"pid": str(pid), "start": start}, {**mark, "start": "x:1"}):
        assert not process_stat.lives(other)
    assert not process_stat.is_stopped(pid)
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: process_stat.is_stopped(pid), limit_s=10)
    assert process_stat.start_of(pid) == start
    child.kill()
    # Its end has not been noticed by its parent.
    wait_until(lambda: process_stat.read_stat(pid)[0] == "Z", limit_s=10)
    assert process_stat.start_of(pid) is None
    assert not process_stat.lives(mark)
    child.wait()
    assert process_stat.read_stat(pid) == []
    assert (process_stat.parent_of(pid), process_stat.start_of(pid)) == (None, None)
    assert (process_stat.wait_channel(pid), process_stat.is_stopped(pid)) == ("", False)
    assert not process_stat.lives({"pid": pid, "start": None})


def test_a_machine_without_an_id_has_a_name(monkeypatch):
    def no_file(path: Path) -> str:
        raise FileNotFoundError(path)

    assert process_stat.name_machine().startswith(f"{os.uname().nodename} ")
    monkeypatch.setattr(Path, "read_text", no_file)
    assert process_stat.name_machine() == f"{os.uname().nodename} "


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_record_is_replaced_also_where_the_disk_is_full(tmp_path, monkeypatch, is_begun):
    assert read_record(tmp_path) == {}
    write_record(tmp_path, {"pid": 1})
    assert read_record(tmp_path) == {"pid": 1}

    def full(path: Path, data: bytes) -> None:
        if is_begun:
            path.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    write_record(tmp_path, {"pid": 1, "exit_code": 0})
    assert read_record(tmp_path) == {"pid": 1, "exit_code": 0}
    write_record(tmp_path, {"detail": "x" * 2 * RECORD_BYTES})
    assert (tmp_path / RECORD).stat().st_size == RECORD_BYTES, "in the room that it had"
    assert read_record(tmp_path) == {}
    write_record(tmp_path / "no folder", {"pid": 1})
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("text", ["", "[1]", '{"pid": '])
def test_what_is_no_record_is_none(tmp_path, text):
    (tmp_path / RECORD).write_text(text)
    assert read_record(tmp_path) == {}
