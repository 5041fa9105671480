"""What a run says through real pipes: to a fast reader, a slow one, and one that pauses."""

import contextlib
import os
import re
import select
import threading
from collections.abc import Callable, Iterator

import pytest

from launcher.follow import output_buffer
from launcher.follow.console import Console
from launcher.follow.output_buffer import OutputBuffer

KIB = 1 << 10


class Reader:
    """The other end of a pipe; reads when told to."""

    def __init__(self, ours: int, theirs: int) -> None:
        self.fd, self.text = ours, ""
        self.writer = theirs
        self.outlet = OutputBuffer(os.fdopen(theirs, "w", encoding="utf-8"))

    def read_to_end(self, between: Callable[[], object] = lambda: None) -> None:
        """Until the last writer has gone, calling ``between`` before each piece."""
        data = bytearray()
        while between() or (piece := os.read(self.fd, 4 * KIB)):
            data += piece
        self.text = data.decode()

    def in_thread(self, between: Callable[[], object] = lambda: None) -> threading.Thread:
        thread = threading.Thread(target=self.read_to_end, args=(between,), daemon=True)
        thread.start()
        return thread

    def close_writers(self) -> None:
        os.close(self.writer)


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader(*os.pipe())
    yield reader
    os.close(reader.fd)


def numbered(text: str) -> list[int]:
    """The numbers of the lines that were seen; every line is whole."""
    lines = text.splitlines()
    assert all(re.fullmatch(r"line \d+ x{80}", line) for line in lines)
    return [int(line.split()[1]) for line in lines]


def write_lines(outlet: OutputBuffer, count: int) -> None:
    console = Console(outlet)
    for number in range(count):
        console.line(f"line {number} {'x' * 80}")


def test_a_reader_that_reads_loses_nothing_of_a_hundred_thousand_lines(reader):
    thread = reader.in_thread()
    write_lines(reader.outlet, 100_000)
    assert reader.outlet.close()
    reader.close_writers()
    thread.join()
    assert numbered(reader.text) == list(range(100_000))


def test_at_the_end_a_reader_that_never_comes_is_not_waited_for(reader, monkeypatch):
    monkeypatch.setattr(output_buffer, "STALL_S", 0.1)
    write_lines(reader.outlet, 5000)
    assert not reader.outlet.close()
    os.set_blocking(reader.writer, False)
    words = b"an error's words" * 10_000  # more than a pipe holds
    assert os.write(reader.writer, words) == len(words), "they wait for nobody either"


def test_one_line_that_a_full_pipe_does_not_take_is_not_waited_for_either(reader, monkeypatch):
    monkeypatch.setattr(output_buffer, "STALL_S", 0.1)
    assert reader.outlet.close(), "nothing was written"
    os.set_blocking(reader.writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(reader.writer, bytes(64 * KIB))
    reader.outlet.put(b"a line\n")
    assert not reader.outlet.close()


def test_at_the_end_a_slow_reader_is_waited_for(reader, monkeypatch):
    monkeypatch.setattr(output_buffer, "STALL_S", 2.0)
    write_lines(reader.outlet, 1500)
    pause = threading.Event()
    thread = reader.in_thread(lambda: pause.wait(0.1))  # 130 kB in pieces of 4: longer than STALL_S
    reader.outlet.close()
    reader.close_writers()
    thread.join()
    assert numbered(reader.text) == list(range(1500))


def test_who_asks_for_room_first_misses_nothing_however_long_a_reader_pauses(reader, monkeypatch):
    monkeypatch.setattr(output_buffer, "FULL_BYTES", 64 * KIB)
    # On a busy machine the writer may not run for a tenth of a second.
    monkeypatch.setattr(output_buffer, "STALL_S", 1.0)
    written = 0
    while reader.outlet.wait_for_room():  # until nobody has read for that long
        reader.outlet.put(f"line {written} {'x' * 80}\n".encode())
        written += 1
    assert written < 3000, "what the pipe and the buffer hold"
    assert not reader.outlet.has_room()
    monkeypatch.setattr(output_buffer, "STALL_S", 60.0)
    thread = reader.in_thread()
    for number in range(written, 20_000):
        while not reader.outlet.wait_for_room():
            pass
        reader.outlet.put(f"line {number} {'x' * 80}\n".encode())
    assert not reader.outlet.close(), "it was given up once, so who held back may have lost lines"
    reader.close_writers()
    thread.join()
    assert numbered(reader.text) == list(range(20_000))


def test_output_is_held_back_once_4_mib_wait_for_the_reader(reader):
    reader.outlet.put(b"x" * (4 << 20))
    assert reader.outlet.has_room()
    reader.outlet.put(b"x" * (200 << 10))  # more than the pipe has taken
    assert not reader.outlet.has_room()


def test_a_pipe_gets_whole_lines_as_many_as_it_takes_in_one_piece(reader):
    buffer = OutputBuffer.__new__(OutputBuffer)  # without the thread that takes the pieces
    buffer._chunk_bytes = reader.outlet._chunk_bytes
    assert buffer._chunk_bytes == select.PIPE_BUF
    short, long = b"x" * 99 + b"\n", b"y" * 2 * select.PIPE_BUF + b"\n"
    for given, pieces in (
        (short * 50, [short * 40, short * 10]),
        (
            b"z" * (select.PIPE_BUF - 1) + b"\n" + short,
            [b"z" * (select.PIPE_BUF - 1) + b"\n", short],
        ),
        (long + short, [long, short]),
        (short + long, [short, long]),
        (b"\n" + b"a prompt", [b"\n", b"a prompt"]),
    ):
        buffer._buffer = bytearray(given)
        taken = []
        while buffer._buffer:
            taken.append(buffer._next_chunk())
        assert taken == pieces


def test_a_stream_that_takes_no_more_is_told_once_with_the_systems_word():
    ours, theirs = os.pipe()
    os.close(ours)
    told: list[str] = []
    heard = threading.Event()

    def on_lost(why: str) -> None:
        told.append(why)
        heard.set()

    lost = OutputBuffer(os.fdopen(theirs, "w"), on_lost=on_lost)
    write_lines(lost, 5000)
    assert heard.wait(30)
    assert not lost.has_room()
    assert not lost.wait_for_room()
    write_lines(lost, 5000)
    assert lost.close()
    assert told == ["Broken pipe"]


def test_a_pipe_that_another_process_made_non_blocking_gets_every_line(reader):
    os.set_blocking(reader.writer, False)
    write_lines(reader.outlet, 5000)
    thread = reader.in_thread()
    reader.outlet.close()
    reader.close_writers()
    thread.join()
    assert numbered(reader.text) == list(range(5000))
