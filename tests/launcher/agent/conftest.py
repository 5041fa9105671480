"""The agent's archive, and nodes that must leave nothing behind."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from launcher.targets.agent_archive import read_agent_sources, render_agent_archive
from tests.launcher.agent.place import Place


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "agent.pyz"
    path.write_bytes(render_agent_archive(read_agent_sources(), bytecode=True))
    return path


@pytest.fixture
def place(tmp_path: Path, archive: Path) -> Iterator[Place]:
    node = Place(tmp_path, archive)
    yield node
    end(node)


@pytest.fixture
def places(tmp_path: Path, archive: Path) -> Iterator[list[Place]]:
    """Three nodes that share a folder."""
    nodes = [Place(tmp_path, archive, index) for index in range(3)]
    yield nodes
    for node in nodes:
        end(node)


def end(node: Place) -> None:
    """Stops a node that still runs; fails where a process of it is left."""
    for process in node.processes():  # one that is frozen would hear no other signal
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
    if node.process is not None and node.process.poll() is None:
        node.process.send_signal(signal.SIGTERM)
        try:
            node.process.wait(20)
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait(20)
    # What a signal has reached already may still be on its way out.
    _, left = psutil.wait_procs(node.processes(), timeout=2.0)
    # Whoever has adopted one that has ended may be slow to wait for it.
    left = [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    for process in left:
        process.kill()
    assert left == [], f"a test left processes behind: {left}"
