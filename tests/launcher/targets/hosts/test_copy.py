"""A run's files on a host come into the folder here: every byte once, at its place."""

import io
import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.targets.hosts.connection import HostCopy, read_sizes, write_at
from launcher.targets.hosts.program.messages import BEAT, FilePart, read_frame
from launcher.targets.hosts.program.node_state import is_node_followed
from launcher.targets.hosts.program.watch import CHUNK_BYTES, SILENCE_LIMIT_S, Watch
from tests.disks import mounted


class Pair:
    """A host's run folder, the one here, and a line between them that can be cut."""

    def __init__(self, folder: Path) -> None:
        self.there, self.here = folder / "there", folder / "here"
        self.there.mkdir()
        self.here.mkdir()
        self.connect()

    def connect(self) -> None:
        self.wire = io.BytesIO()
        self.watch = Watch(str(self.there), 0, read_sizes(self.here), follows=False)
        self.watch._out = self.wire

    def copy(self) -> int:
        """Bytes of files that travelled."""
        start = self.wire.tell()
        self.watch.send_new()
        self.wire.seek(start)
        travelled = 0
        while (frame := read_frame(self.wire)) is not None:
            message, blob = frame
            if isinstance(message, FilePart):
                travelled += len(blob)
                write_at(self.here, message, blob)
        return travelled

    def append(self, name: str, data: bytes) -> None:
        path = self.there / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_what_a_link_leads_to_is_not_copied(pair, tmp_path):
    (tmp_path / "secret").write_text("of another user")
    (pair.there / "link").symlink_to(tmp_path / "secret")
    assert (pair.copy(), [*pair.here.iterdir()]) == (0, [])


def test_a_growing_file_travels_once(pair):
    pair.append("nodes/0/0/stdout", b"one\n\xff\0")
    assert pair.copy() == 6
    pair.append("nodes/0/0/stdout", b"two\n")
    assert pair.copy() == 4
    assert pair.copy() == 0
    assert (pair.here / "nodes/0/0/stdout").read_bytes() == b"one\n\xff\0two\n"


def test_after_a_cut_the_copy_goes_on_where_it_broke(pair):
    pair.append("nodes/0/0/stdout", b"a" * 3_000_000)
    pair.watch.send_new()
    pair.wire.seek(0)
    first, blob = read_frame(pair.wire) or (None, b"")
    assert isinstance(first, FilePart)
    write_at(pair.here, first, blob)
    pair.connect()
    pair.append("nodes/0/0/stdout", b"b")
    assert pair.copy() == 3_000_001 - len(blob)
    assert (pair.here / "nodes/0/0/stdout").read_bytes() == b"a" * 3_000_000 + b"b"


def test_a_replaced_file_travels_as_a_whole(pair):
    for text in ('{"loss": 12345}', '{"loss": 1}', '{"loss": 222222222}'):
        (pair.there / "new").write_text(text)
        (pair.there / "new").replace(pair.there / "metrics.json")
        pair.copy()
        assert (pair.here / "metrics.json").read_text() == text


@pytest.mark.mount
def test_a_full_disk_here_leaves_no_holes_and_the_next_conversation_brings_the_rest(
    pair, monkeypatch
):
    pair.append("nodes/0/0/outcome.json", b"x" * 10_000)
    pair.append("nodes/0/0/stdout", bytes(range(256)) * 4096)
    with mounted(pair.here) as disk:
        disk.fill()
        with disk.filler.open("r+b") as file:
            file.truncate(disk.filler.stat().st_size - (300 << 10))
        monkeypatch.setattr("launcher.targets.hosts.connection.FULL_RETRY_S", 0.0)
        copies = [HostCopy(pair.here)]
        for _ in range(2):
            pair.watch.send_new()
            pair.wire.seek(0)
            while (frame := read_frame(pair.wire)) is not None:
                copies[-1].write(*frame)
            if len(copies) == 1:
                assert copies[0].is_due()
                assert disk.leftovers() == []
                disk.free()
                pair.connect()
                copies.append(HostCopy(pair.here))
        assert not copies[1].is_due()
        for name in ("nodes/0/0/outcome.json", "nodes/0/0/stdout"):
            assert (pair.here / name).read_bytes() == (pair.there / name).read_bytes()


def test_code_agent_and_checkpoints_stay_on_the_host_and_what_a_training_calls_so_travels(pair):
    for name in ("code/train.py", "agent.pyz", "checkpoints/step-1/weights", ".hidden"):
        pair.append(name, b"x")
    assert pair.copy() == 0
    names = ("lightning_logs/version_0/checkpoints/last.ckpt", "out/code/x.txt")
    for name in names:
        pair.append(name, b"")
    pair.copy()
    # Empty files too.
    assert all((pair.here / name).exists() for name in names)


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "plan.json", "outcome.json", ""])
def test_a_host_writes_nowhere_but_into_its_part_of_the_run_folder(pair, name):
    write_at(pair.here, FilePart(file=name, offset=0, new=True, at=0.0), b"x")
    assert list(pair.here.rglob("*")) == []
    assert not (pair.here.parent / "escape").exists()


class Link(io.BytesIO):
    """What a host sends through; ``at_write`` is what happens here while a part is on its way."""

    def __init__(self, at_write: Callable[[int], None]) -> None:
        super().__init__()
        self._at_write, self._writes = at_write, 0

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._writes += 1
        self._at_write(self._writes)
        return super().write(data)


def watch_through(link: Link, pair: Pair, stdin: int) -> None:
    with os.fdopen(stdin, "rb") as beats, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", Namespace(buffer=beats))
        patch.setattr("sys.stdout", Namespace(buffer=link))
        Watch(str(pair.there), 0, {}, follows=True).run()


ALARMS: list[int] = []


@pytest.fixture(autouse=True)
def no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    # It would end the tests' own process.
    monkeypatch.setattr("launcher.targets.hosts.program.watch.signal.alarm", ALARMS.append)


def test_a_launcher_counts_as_heard_while_a_large_file_is_on_its_way(pair):
    hears, says = os.pipe()
    heard: list[bool] = []

    def at_write(number: int) -> None:
        if number == 2:
            heard.append(is_node_followed(pair.there / "nodes/0"))
            os.write(says, BEAT)
        if number == 10:
            heard.append(is_node_followed(pair.there / "nodes/0"))
            os.close(says)

    pair.append("nodes/0/0/stdout", b"a" * (20 * CHUNK_BYTES))
    watch_through(Link(at_write), pair, hears)
    assert heard == [False, True]


def test_a_launcher_that_never_says_a_word_is_not_waited_for(pair):
    hears, says = os.pipe()
    os.close(says)
    ALARMS.clear()
    watch_through(Link(lambda number: None), pair, hears)
    assert ALARMS == [SILENCE_LIMIT_S]
