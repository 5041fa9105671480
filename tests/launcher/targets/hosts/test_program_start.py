"""What each conversation with a host costs there: bytes that travel, modules that are imported."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.program.messages import FunctionCall, Record, write_frame
from launcher.targets.hosts.program.session import read_clock
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.hosts.ssh.session import host_program

SPY = """#!/bin/sh
for word; do :; done
tee {sent}.$$ | sh -c "$word"
"""
SMALL = 4096
SLOW = {"argparse", "ctypes", "dataclasses", "inspect", "logging", "tempfile"}
"""Modules that no answer needs; the program on a host starts for each conversation."""
OF_PROCESSES = {"selectors", "socket", "subprocess", "threading"}
OF_FILES = {"pathlib", "shutil", "urllib.parse"}
REPORTS = """
import sys
sys.path.insert(0, sys.argv[1])
from _launcher_node.targets.hosts.program.__main__ import main
main([sys.argv[1]])
print(*sys.modules, file=sys.stderr)
"""


def test_the_program_travels_only_to_a_host_that_does_not_have_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    client = tmp_path / "bin/ssh"
    client.parent.mkdir()
    client.write_text(SPY.format(sent=tmp_path / "sent"))
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
    host = Host(name="gpu1", state_dir=str(tmp_path / "state"))
    ssh = Ssh(Inventory(hosts=()))
    sizes = []
    for _ in range(3):
        with ssh.open(host) as session:
            assert session.call(read_clock) > 0
        (sent,) = tmp_path.glob("sent.*")
        sizes.append(sent.stat().st_size)
        sent.unlink()
    assert sizes[0] > len(host_program()[0])
    assert max(sizes[1:]) < SMALL


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program as it lies on a host."""
    folder = tmp_path_factory.mktemp("program") / "bin/host"
    zipfile.ZipFile(io.BytesIO(host_program()[0])).extractall(folder)
    return folder


def call(function: str, **arguments: object) -> FunctionCall:
    return FunctionCall(function=function, arguments=arguments)


def imported_for(folder: Path, *asked: Record) -> set[str]:
    """The modules of a conversation in which this is asked."""
    wire = io.BytesIO()
    for message in asked:
        write_frame(wire, message)
    done = subprocess.run(
        (sys.executable, "-S", "-c", REPORTS, str(folder)),
        input=wire.getvalue(),
        capture_output=True,
        check=True,
    )
    return set(done.stderr.decode().split())


def test_a_conversation_that_asks_for_little_imports_little(folder):
    imported = imported_for(folder, call("session.read_clock"))
    assert "os" in imported
    assert not imported & (SLOW | OF_PROCESSES | OF_FILES)


def test_a_watch_imports_nothing_that_starts_processes(folder, tmp_path):
    run_dir = str(tmp_path)
    asked = call("watch.send_run", run_dir=run_dir, node=0, have={}, beside_code_bytes=0)
    imported = imported_for(folder, asked)
    assert "pathlib" in imported
    assert not imported & (SLOW | OF_PROCESSES)


def test_what_a_host_has_is_read_without_what_no_answer_needs(folder, tmp_path):
    own = str(tmp_path)
    asked = call("facts.read_host", state_dir=own, lease_dir=own, python=None, gpus=False)
    imported = imported_for(folder, asked)
    assert "socket" in imported
    assert not imported & {"ctypes", "dataclasses", "inspect", "tempfile"}


def test_a_conversation_that_ends_nodes_does_not_import_what_only_a_keeper_needs(folder, tmp_path):
    asked = call("requests.end_nodes", run_id="none", node=None, grace_s=0.0, in_containers=False)
    imported = imported_for(folder, asked)
    assert not {name.rpartition(".")[2] for name in imported} & {"keeper", "leases", "children"}
