"""What the agent says on a pipe that somebody has made non-blocking: never the agent's end."""

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent import streams

MUCH = bytes(1 << 20)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue


def write(fd: int) -> float:
    """How long it took."""
    began_at = time.monotonic()
    assert streams._Unrefused(fd).write(memoryview(MUCH)) == len(MUCH)
    return time.monotonic() - began_at


def test_a_pipe_that_is_read_late_gets_all(pipe):
    reader, writer = pipe
    found = bytearray()

    def read() -> None:
        time.sleep(streams._HOLD_S / 4)
        while len(found) < len(MUCH) and (part := os.read(reader, 1 << 16)):
            found.extend(part)

    thread = threading.Thread(target=read)
    thread.start()
    write(writer)
    thread.join(10)
    assert bytes(found) == MUCH


def test_a_pipe_whose_reader_has_gone_takes_all(pipe):
    reader, writer = pipe
    os.close(reader)
    assert write(writer) < streams._HOLD_S


def test_a_pipe_that_nobody_reads_is_not_waited_for(pipe):
    assert streams._HOLD_S <= write(pipe[1]) < 10 * streams._HOLD_S


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_line_is_seen_as_soon_as_it_is_written(stream, unbuffered):
    code = (
        "import sys, time; from launcher.agent.streams import open_streams; open_streams(); "
        f"sys.{stream}.write('here\\n'); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        cwd=Path(__file__).parents[3],
        **{stream: subprocess.PIPE},
    )
    pipe = getattr(child, stream)
    try:
        assert select.select([pipe], [], [], 30)[0], "it stays in a buffer"
        assert pipe.readline() == b"here\n"
    finally:
        child.kill()
        child.wait()
        pipe.close()
