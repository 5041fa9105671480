"""The test hosts themselves: what the other tests take for granted."""

from __future__ import annotations

import subprocess

import pytest

from tests.hosts.places import HOME, Network

pytestmark = pytest.mark.hosts


def test_each_host_has_its_own_name_and_home(four_hosts: Network) -> None:
    for host in four_hosts.hosts:
        done = subprocess.run(
            [*four_hosts.ssh, host.name, "hostname; touch ~/mark; ls /dev/shm"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{host.name}\n"
        assert (host.home / "mark").exists()
        host.run("rm", f"{HOME}/mark")


def test_hosts_reach_each_other(four_hosts: Network) -> None:
    first, second = four_hosts.hosts[:2]
    first.run("bash", "-c", f"exec 3<>/dev/tcp/{second.address}/22; read -t 5 -u 3 line")


def test_a_host_comes_back_after_a_reboot(four_hosts: Network) -> None:
    host = four_hosts.hosts[3]
    host.run("touch", "/dev/shm/gone")
    host.reboot()
    assert host.run("ls", "/dev/shm") == ""
