"""Hosts for tests: network namespaces with addresses, an sshd and, if asked for, an engine in each.

Each host has process ids, mounts, a host name, /dev/shm and a home of its own: to kill its first
process is to pull its plug. They meet at a bridge in a namespace of its own, where this machine's
firewall has no say.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import textwrap
from pathlib import Path
from uuid import uuid4

from tests.programs import run_program
from tests.waiting import wait_until

SSH_PORT = 22
HOME = "/root"
INIT = Path(__file__).with_name("host_init.sh")


def sh(*argv: str | Path) -> str:
    """Runs a command that must succeed."""
    done = run_program([str(word) for word in argv])
    assert done.returncode == 0, f"{' '.join(map(str, argv))}: {done.stderr}"
    return done.stdout


class Host:
    """One machine. ``name`` is its alias in the client's ssh config and its host name."""

    def __init__(self, network: Network, index: int) -> None:
        self.network, self.index = network, index
        self.name = f"gpu{index}"
        self.namespace = f"{network.label}-{index}"
        self.folder = network.folder / self.name
        self.address = network.address(index)
        self.training_address = network.address(index, training=True)
        self._init: subprocess.Popen[bytes] | None = None

    @property
    def home(self) -> Path:
        """What the host's root has written to its home, seen from outside; only to be read.

        What overlayfs does when a layer changes under it is undefined.
        """
        return self.folder / "home"

    @property
    def tmp(self) -> str:
        """Where its sessions put temporary files: /tmp is this machine's, for all hosts."""
        return f"{self.folder}/tmp"

    @property
    def key(self) -> str:
        """Its sshd's public key."""
        return (self.folder / "etc/host_key.pub").read_text().rsplit(" ", 1)[0]

    def make(self) -> None:
        for name in ("home", "work", "etc", "shm", "tmp"):
            (self.folder / name).mkdir(parents=True)
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "etc/host_key")
        self._write_sshd_config()
        self.set_session_env()
        names = (f"{host.address} {host.name}\n" for host in self.network.hosts)
        (self.folder / "etc/hosts").write_text("127.0.0.1 localhost\n" + "".join(names))
        sh("ip", "netns", "add", self.namespace)
        self._connect("eth0", self.address)
        if self.network.has_training:
            self._connect("train0", self.training_address)
        sh("ip", "-n", self.namespace, "link", "set", "lo", "up")
        # The default route is the management network's, as on most clusters.
        sh("ip", "-n", self.namespace, "route", "add", "default", "via", self.network.address(254))

    def _connect(self, interface: str, address: str) -> None:
        network = self.network
        outer = f"{interface[0]}{self.index}"
        argv = ("link", "add", outer, "type", "veth", "peer", "name", interface)
        sh("ip", "-n", network.switch, *argv, "netns", self.namespace)
        sh("ip", "-n", network.switch, "link", "set", outer, "master", f"br-{interface}", "up")
        sh("ip", "-n", self.namespace, "addr", "add", f"{address}/24", "dev", interface)
        sh("ip", "-n", self.namespace, "link", "set", interface, "up")

    def _write_sshd_config(self) -> None:
        (self.folder / "etc/sshd_config").write_text(
            textwrap.dedent(f"""\
                Port {SSH_PORT}
                HostKey {self.folder}/etc/host_key
                AuthorizedKeysFile {self.network.folder}/id.pub
                PidFile {self.folder}/etc/sshd.pid
                PermitRootLogin prohibit-password
                PasswordAuthentication no
                KbdInteractiveAuthentication no
                UsePAM no
                StrictModes no
                MaxStartups 200
                MaxSessions 200
                UseDNS no
                """)
        )

    # -- an engine of its own ---------------------------------------------------------------------

    def start_engine(self) -> None:
        """A Docker engine in the host."""
        data = self.folder / "docker"
        script, containerd = self.folder / "etc/start", self.folder / "docker-exec/containerd"
        script.write_text(
            # Else the engine takes another process with an old number for its own: /run is empty
            # after a reboot.
            f"#!/bin/sh\nrm -f {self.folder}/docker.pid {containerd}/containerd.pid\n"
            f"setsid dockerd --data-root {data} --exec-root {self.folder}/docker-exec "
            f"--pidfile {self.folder}/docker.pid --host unix://{self.folder}/docker.sock "
            f"--bridge=none --iptables=false --ip6tables=false "
            f">>{self.folder}/docker.log 2>&1 </dev/null &\n"
        )
        script.chmod(0o755)
        self.run(str(script))
        wait_until(self._engine_answers, f"engine of {self.name}")

    def _engine_answers(self) -> bool:
        return bool(self.docker("version", "--format", "{{.Server.Version}}", check=False))

    @property
    def has_engine(self) -> bool:
        return (self.folder / "etc/start").exists()

    def docker(self, *argv: str, check: bool = True) -> str:
        """The docker command line on the host's engine."""
        host = f"unix://{self.folder}/docker.sock"
        return self.run("docker", "--host", host, *argv, check=check).strip()

    # -- power and services -------------------------------------------------------------------

    def set_session_env(self, **variables: str) -> None:
        """What later sessions find in their environment; without any, the usual."""
        usual = [f"DOCKER_HOST=unix://{self.folder}/docker.sock", f"TMPDIR={self.tmp}"]
        words = [*usual, *(f"{name}={value}" for name, value in variables.items())]
        config = self.folder / "etc/sshd_config"
        kept = [line for line in config.read_text().splitlines() if "SetEnv" not in line]
        config.write_text("\n".join([*kept, f"SetEnv {' '.join(words)}"]) + "\n")
        if self._init is not None:
            self.stop_sshd()
            self.start_sshd()

    def stop_sshd(self) -> None:
        """The listener and all sessions; what a session left running goes on."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                    os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self._answers(), f"{self.name} refuses sessions")

    def start_sshd(self) -> None:
        self.run("/usr/sbin/sshd", "-f", f"{self.folder}/etc/sshd_config", "-E", self.log)
        wait_until(self._answers, f"sshd of {self.name}")

    @property
    def log(self) -> str:
        return f"{self.folder}/etc/sshd.log"

    def start(self) -> None:
        """Switches it on and waits for its sshd."""
        # It goes with this process, also where that is killed before it could remove its hosts.
        argv = ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/run/netns/{self.namespace}"]
        argv += ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL"]
        argv += ["--mount-proc", "bash", str(INIT), str(self.folder), self.name]
        with (self.folder / "console").open("ab") as console:
            self._init = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
        wait_until(self._answers, f"sshd of {self.name}")

    def _answers(self) -> bool:
        done = run_program([*self.network.ssh, self.name, "true"])
        return done.returncode == 0

    def power_off(self) -> None:
        """Ends every process of the host at once; /dev/shm and temporary files go with them."""
        if self._init is None:
            return
        first = self.first_pid()
        self._init.kill()
        self._init.wait()
        # Its first process ends after all its others: before that a port may still be taken.
        wait_until(lambda: not _is_alive(first), f"{self.name} is off")
        self._init = None
        for name in ("shm", "tmp"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(exist_ok=True)

    def reboot(self) -> None:
        self.power_off()
        self.start()

    def run(self, *argv: str, check: bool = True) -> str:
        """A command inside the host, not by way of ssh."""
        done = run_program([*self.enter(), *argv], timeout=60)
        assert not check or done.returncode == 0, f"{self.name}: {argv}: {done.stderr}"
        return done.stdout

    def enter(self) -> list[str]:
        """What a command line begins with that is to run inside the host."""
        first = self.first_pid()
        return ["nsenter", "-t", str(first), "-m", "-u", "-i", "-n", "-p", f"--wd={HOME}"]

    def first_pid(self) -> int:
        """The host's own process 1, by this machine's number."""
        assert self._init is not None, f"{self.name} is off"
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text()
        return int(children.split()[0])

    def pids(self) -> list[int]:
        """All its processes, by this machine's numbers."""
        own = os.readlink(f"/proc/{self.first_pid()}/ns/pid")
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(path / "ns/pid") == own:
                    found.append(int(path.name))
        return found

    def signal_all(self, signum: signal.Signals) -> None:
        """Freezes or thaws the host: every process but its first."""
        for pid in self.pids():
            if pid != self.first_pid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)

    def commands(self) -> list[str]:
        """The command lines of its processes, without its first, its sshd's and its engine's."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line and not any(word in line for word in SERVICES):
                    found.append(line)
        return found

    def listening(self) -> list[str]:
        """Its TCP ports that somebody listens on, without its sshd's."""
        found = []
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in self.run("cat", table).splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                port = int(local.rpartition(":")[2], 16)
                if state == "0A" and port != SSH_PORT:
                    found.append(f"port {port}")
        return found

    def remove(self) -> None:
        self.power_off()
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True)


SERVICES = ("host_init.sh", "sshd", "sleep infinity", "dockerd", "containerd", "docker-init")


class Network:
    """Some hosts, the bridge between them, and a client's ssh folder."""

    def __init__(self, folder: Path, count: int, *, training: bool = False) -> None:
        self.folder, self.has_training = folder, training
        self.label = f"lt{uuid4().hex[:6]}"
        self.switch = f"{self.label}-sw"
        self.subnet = _free_subnet()
        self.ssh_config = folder / "ssh_config"
        self.ssh = ["ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes"]
        self.hosts = [Host(self, index) for index in range(1, count + 1)]

    def address(self, index: int, *, training: bool = False) -> str:
        return f"10.{214 if training else 213}.{self.subnet}.{index}"

    def make(self) -> None:
        """Cables, keys and switched-on hosts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "id")
        sh("ip", "netns", "add", self.switch)
        for bridge in ("br-eth0", *(("br-train0",) if self.has_training else ())):
            sh("ip", "-n", self.switch, "link", "add", bridge, "type", "bridge")
            sh("ip", "-n", self.switch, "link", "set", bridge, "up")
        self._connect_client()
        for host in self.hosts:
            host.make()
        self._write_client_files()
        for host in self.hosts:
            host.start()

    def _connect_client(self) -> None:
        """This machine is where the launcher runs: a cable to the same bridge."""
        argv = ("link", "add", self.label, "type", "veth", "peer", "name", "client")
        sh("ip", *argv, "netns", self.switch)
        sh("ip", "-n", self.switch, "link", "set", "client", "master", "br-eth0", "up")
        sh("ip", "addr", "add", f"{self.address(254)}/24", "dev", self.label)
        sh("ip", "link", "set", self.label, "up")

    def add_names(self, count: int) -> list[str]:
        """More names for the hosts in turn, each with an address of its own.

        To an ssh client they are so many machines: it shares no connection between two of them.
        """
        names, lines, known = [], [], []
        for number in range(count):
            host = self.hosts[number % len(self.hosts)]
            address = self.address(len(self.hosts) + 1 + number)
            sh("ip", "-n", host.namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            names.append(f"{host.name}-{number}")
            lines += [f"Host {names[-1]}", f"  HostName {address}"]
            known.append(f"{address} {host.key}\n")
        self.ssh_config.write_text("\n".join(lines) + "\n" + self.ssh_config.read_text())
        with (self.folder / "known_hosts").open("a") as file:
            file.writelines(known)
        return names

    def set_client_link(self, up: bool) -> None:
        """Cuts this machine off from all hosts, or joins them again."""
        sh("ip", "-n", self.switch, "link", "set", "client", "up" if up else "down")

    def slow_client(self, rate: str = "") -> None:
        """Limits what this machine sends to all hosts, such as to ``8mbit``, or ends that."""
        argv = ("tc", "qdisc", "replace" if rate else "del", "dev", self.label, "root")
        limit = ("tbf", "rate", rate, "burst", "64kb", "latency", "400ms") if rate else ()
        sh(*argv, *limit)

    def _write_client_files(self) -> None:
        lines = []
        known = []
        for host in self.hosts:
            lines += [f"Host {host.name}", f"  HostName {host.address}"]
            known.append(f"{host.address} {host.key}\n")
        lines += ["Host *", "  User root", f"  IdentityFile {self.folder}/id"]
        lines += ["  IdentitiesOnly yes", f"  UserKnownHostsFile {self.folder}/known_hosts"]
        self.ssh_config.write_text("\n".join(lines) + "\n")
        (self.folder / "known_hosts").write_text("".join(known))

    def remove(self) -> None:
        """Everything but the folder."""
        for host in self.hosts:
            host.remove()
        for argv in (("link", "del", self.label), ("netns", "del", self.switch)):
            subprocess.run(["ip", *argv], check=False, capture_output=True)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _free_subnet() -> int:
    """The third number of addresses that no route of this machine has."""
    routes = sh("ip", "-o", "route")
    return next(n for n in range(os.getpid() % 200, 255) if f"10.213.{n}." not in routes)
