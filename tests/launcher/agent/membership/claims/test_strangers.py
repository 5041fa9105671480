"""Whoever else connects to a run's coordinator disturbs no node of the run."""

import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.programs import run_program

MANY = 2_000
NO_DESCRIPTORS = """
import resource, socket, sys
from contextlib import ExitStack
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
from tests.launcher.agent.membership.conftest import Bench
bench = Bench(2, 2)
resource.prlimit(bench.served.pid, resource.RLIMIT_NOFILE, (40, 40))
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
with ExitStack() as stack:
    for _ in range(100):
        stack.enter_context(socket.create_connection(("127.0.0.1", bench.served.port)))
bench.meet(0, 1)
print("met")
bench.ending.close()
"""


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_thousands_that_say_nothing_keep_no_node_out(make, many_files):
    bench = make(2, 2)
    address = ("127.0.0.1", bench.served.port)
    with ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(socket.create_connection(address, timeout=10.0))
        bench.meet(0, 1)


def test_without_a_free_file_descriptor_it_says_so_in_one_line_and_goes_on():
    done = run_program([sys.executable, "-c", NO_DESCRIPTORS])
    assert done.stdout.splitlines()[-1:] == ["met"], done.stderr
    said = (done.stdout + done.stderr).splitlines()
    assert len([line for line in said if "Too many open files" in line]) == 1, done.stderr
    assert "Traceback" not in done.stderr
