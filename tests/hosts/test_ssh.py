"""The transport on real sshds: what is sent arrives, and what fails names host and fix."""

import shutil
import sys
from dataclasses import replace

import pytest

from launcher.contract.errors import TargetError
from launcher.targets.hosts.inventory.inventory import Inventory
from launcher.targets.hosts.program.code_store import has_code, store_code
from launcher.targets.hosts.program.facts import read_host
from launcher.targets.hosts.program.messages import HostReport
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh.client import Ssh, make_control_dir
from launcher.targets.hosts.ssh.session import Session
from tests.hosts.places import HOME, Network

pytestmark = pytest.mark.hosts


def finds_code(session: Session) -> bool:
    return session.call(has_code, state_dir="/nowhere", hash="x")


def ssh_of(network: Network, **fields: object) -> tuple[Ssh, list[Host]]:
    hosts = tuple(Host(name=host.name) for host in network.hosts)
    inventory = Inventory(hosts=hosts, ssh_config=str(network.ssh_config))
    return Ssh(replace(inventory, **fields)), list(hosts)  # type: ignore[arg-type]


def test_each_host_tells_its_facts(four_hosts):
    ssh, hosts = ssh_of(four_hosts)

    def facts(host: Host) -> HostReport:
        with ssh.open(host) as session:
            return session.call(
                read_host,
                state_dir="~/.launcher",
                lease_dir="/dev/shm/l",
                python=sys.executable,
                ports=[20001],
                runtime="python",
            )

    for place, found in zip(four_hosts.hosts, ssh.each(facts, hosts), strict=True):
        assert found.machine.split()[0] == place.name
        # Not the speed: a test host shares /sys with this machine, whose eth0 is another one.
        assert ("eth0", place.address) in [(i.interface, i.address) for i in found.interfaces]
        assert found.torch_version
        assert found.free_ports == [20001]
        assert found.state_dir == "/root/.launcher"


def test_a_host_is_reached_though_the_folder_of_the_connections_was_removed(four_hosts):
    ssh, hosts = ssh_of(four_hosts)
    with ssh.open(hosts[0]) as session:
        shutil.rmtree(make_control_dir())
        assert not finds_code(session)
        with ssh.open(hosts[0]) as other:
            assert not finds_code(other)


def test_what_a_login_shell_prints_is_dropped(four_hosts):
    ssh, hosts = ssh_of(four_hosts)
    place = four_hosts.hosts[1]
    place.run("bash", "-c", f"echo \"echo '12 0'; echo welcome\" >{HOME}/.bashrc")
    try:
        with ssh.open(hosts[1]) as session:
            assert not finds_code(session)
    finally:
        place.run("rm", f"{HOME}/.bashrc")


def test_an_unknown_host_key_is_refused_and_accepted_by_choice_alone(four_hosts, tmp_path):
    config = tmp_path / "config"
    known = tmp_path / "known_hosts"
    text = four_hosts.ssh_config.read_text()
    config.write_text(text.replace(f"{four_hosts.folder}/known_hosts", str(known)))
    # Another port's name, so that no shared connection of another test is used.
    host = Host(name="gpu3", port=22, user="root", identity=f"{four_hosts.folder}/id")
    config.write_text(config.read_text().replace("Host gpu3\n", f"Host gpu3\n  # {tmp_path}\n"))
    ssh, _ = ssh_of(four_hosts, ssh_config=str(config))
    ssh.disconnect(host)
    with pytest.raises(TargetError, match="gpu3: its host key is not known here") as error:
        ssh.open(host)
    assert "--accept-new-host-keys" in error.value.hint
    ssh, _ = ssh_of(four_hosts, ssh_config=str(config), accept_new=True)
    ssh.open(host).close()
    assert four_hosts.hosts[2].address in known.read_text()
    ssh.disconnect(host)
    # Another machine at that address is never accepted.
    key = (four_hosts.hosts[0].folder / "etc/host_key.pub").read_text().rsplit(" ", 1)[0]
    known.write_text(f"{four_hosts.hosts[2].address} {key}\n")
    with pytest.raises(TargetError, match="host key is another one than before"):
        ssh.open(host)


def test_what_a_host_cannot_do_is_told_with_its_name(four_hosts):
    ssh, hosts = ssh_of(four_hosts)
    with ssh.open(hosts[0]) as session:
        with pytest.raises(TargetError, match="gpu1: /proc/x: "):
            session.call(store_code, state_dir="/proc/x", hash="h", archive=b"data")
        assert not finds_code(session)
