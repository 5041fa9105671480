"""Conversations with hosts, by a stand-in for the ssh client that runs the host's part here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher import proc
from launcher.hosts import Host
from launcher.inventory import Inventory
from launcher.targets.ssh import Session, Ssh

CLIENT = """#!/bin/sh
for word; do :; done
{before}
exec sh -c "$word"
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return open_ssh(tmp_path, monkeypatch)


def open_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str = "") -> Ssh:
    client = tmp_path / "bin/ssh"
    client.parent.mkdir()
    client.write_text(CLIENT.format(before=before))
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
    return Ssh(Inventory(hosts=()))


@pytest.fixture
def hosts(tmp_path: Path) -> list[Host]:
    return [Host(name=name, state_dir=str(tmp_path / name)) for name in ("gpu1", "gpu2")]


def answers(session: Session) -> bool:
    return "at" in session.call("clock")


def test_conversations_that_are_kept_are_used_by_the_next_block(
    ssh: Ssh, hosts: list[Host]
) -> None:
    with ssh.sessions(hosts, keep=True) as first:
        pass
    with ssh.sessions(hosts[:1]) as second:
        assert second["gpu1"] is first["gpu1"]
        assert answers(second["gpu1"])
    with ssh.sessions(hosts) as third:
        assert third["gpu1"] is not first["gpu1"]
        assert all(map(answers, third.values()))


def test_a_launcher_in_the_background_has_conversations_of_its_own(
    ssh: Ssh, hosts: list[Host], tmp_path: Path
) -> None:
    def work(tell: proc.Tell) -> None:
        with ssh.sessions(hosts) as own:
            tell(str(all(map(answers, own.values()))))

    with ssh.sessions(hosts, keep=True):
        pass
    assert proc.in_background(work, tmp_path / "log") == "True"


def test_a_client_that_talks_much_is_never_in_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[Host]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    talk = "yes debug1: channel 0: rcvd adjust | head -n 100000 >&2"
    with open_ssh(tmp_path, monkeypatch, talk).open(hosts[0]) as session:
        assert answers(session)
