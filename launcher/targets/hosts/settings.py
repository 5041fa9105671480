"""A run's own settings on hosts: the machines, and where a host keeps runs and leases."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from launcher.plan.target_facts import MachineFacts
from launcher.plan.target_settings import TargetSettings
from launcher.targets.docker_options import ContainerSettings
from launcher.targets.hosts.program.messages import FOLLOWED_S

STATE_DIR = "~/.launcher"
"""Where a host keeps runs, code and programs, unless the inventory names another folder."""
LEASE_DIR = "/dev/shm/launcher-leases"
"""On one machine alone, and gone after a reboot, like the processes that hold the leases."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One machine; a field that is None is left to ssh's configuration or found on the machine.

    ``name`` is what the ssh client is given, such as an alias of ``~/.ssh/config``. ``slots`` is
    how many processes may run without GPUs; ``gpus`` are the ids that may be used. Other hosts
    reach it at ``address``, by its ``interface``. ``labels`` say where it stands, such as a rack.
    """

    name: str
    port: int | None = None
    user: str | None = None
    identity: str | None = None
    slots: int | None = None
    gpus: tuple[str, ...] | None = None
    address: str | None = None
    interface: str | None = None
    python: str | None = None
    state_dir: str = STATE_DIR
    lease_dir: str = LEASE_DIR
    labels: tuple[tuple[str, str], ...] = ()

    def ssh(self, config: str | None, *options: str) -> tuple[str, ...]:
        """The words that start ssh to this host, without ``--``, its name and a command."""
        given = (("-F", config), ("-p", self.port), ("-l", self.user), ("-i", self.identity))
        words = (str(word) for pair in given if pair[1] for word in pair)
        return ("ssh", *options, *words)

    def way(self, config: str | None, *, port: str = "-p") -> str:
        """The words with which a person tells ssh, or a program like it, to go to this host."""
        given = (("-F", config), (port, self.port), ("-i", self.identity))
        words = [str(word) for pair in given if pair[1] for word in pair]
        return shlex.join([*words, f"{self.user}@{self.name}" if self.user else self.name])


@dataclass(frozen=True, kw_only=True)
class HostFacts(MachineFacts):
    """A host as it was when the plan was made; ``device_ids`` are the GPUs that nobody holds.

    ``state_dir`` is the host's own folder, absolute; ``runtime`` is ``python`` or ``docker``.
    ``user`` is ``uid:gid`` there. Containers start from ``image``; ``torch_version`` is then that
    of the host's present image. ``machine`` identifies the host, as another may get its name.
    """

    host: Host
    device_ids: tuple[str, ...] = ()
    python: str = "python3"
    torch_version: str | None = None
    state_dir: str
    runtime: str = "python"
    user: str | None = None
    image: str | None = None
    machine: str = ""

    @property
    def name(self) -> str:
        return self.host.name


@dataclass(frozen=True, kw_only=True)
class HostsSettings(TargetSettings):
    """``hosts`` are the machines by node index.

    A node ends ``followed_s`` seconds after it was last reached.
    """

    hosts: tuple[HostFacts, ...]
    ssh_config: str | None
    containers: ContainerSettings
    followed_s: float = FOLLOWED_S

    @property
    def machines(self) -> tuple[MachineFacts, ...]:
        return self.hosts

    @property
    def keeps_nodes(self) -> str:
        # A node that the run gives up would be idle, and end at the hold's idle limit.
        return "run it without --in, on nodes of its own" if self.hold else ""
