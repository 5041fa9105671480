"""What a worker prints comes back byte for byte, whatever becomes of the connections."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.hosts.places import Host
from tests.waiting import wait_until

pytestmark = pytest.mark.hosts
LINES = 250
COUNTING = f"""
import os, sys, time
for i in range({LINES}):
    print(f"{{os.environ['RANK']}} line {{i}}", flush=True)
    time.sleep(0.05)
"""
CUTS = 2


def sessions_of(host: Host) -> list[int]:
    """The sshd processes of its open connections: not its listener, whatever OpenSSH's age."""
    found = []
    for pid in host.pids():
        with contextlib.suppress(OSError):
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            # From 9.8 on a session is a program of its own.
            if title.startswith((b"sshd: root", b"sshd-session: root")):
                found.append(pid)
    return found


def lines_of(shown: list[str], start: str) -> list[str]:
    return [line for line in shown if line.startswith(f"{start} line ")]


def read_lines(stream: Iterable[bytes] | None, into: list[str]) -> None:
    into.extend(line.decode().rstrip("\n") for line in stream or ())


def test_no_line_is_lost_or_doubled_when_connections_break(typist):
    typist.write(COUNTING)
    launcher = typist.start("run", "job.yaml", "--nnodes", "2")
    streamed: list[str] = []
    reader = threading.Thread(target=read_lines, args=(launcher.stdout, streamed))
    reader.start()
    host = typist.network.hosts[1]
    for cut in range(1, CUTS + 1):
        # Lines have come by this connection: it is a stream that breaks.
        wait_until(lambda enough=50 * cut: len(lines_of(streamed, "[1/1] 1")) > enough)
        broken = set(sessions_of(host))
        assert broken
        for pid in broken:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda broken=broken: set(sessions_of(host)) - broken)
    assert launcher.wait(120) == 0
    reader.join()
    collected = typist("logs", "latest").stdout.splitlines()
    for shown in (streamed, collected):
        for start in ("[0/0] 0", "[1/1] 1"):
            assert lines_of(shown, start) == [f"{start} line {i}" for i in range(LINES)]
