"""What was discovered about a target, the planner's only input besides the job; and which variables
of this shell win over the plan's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.node_plan import AgentSettings, Env

if TYPE_CHECKING:
    from launcher.plan.target_settings import TargetSettings

RUN_ID = "{run_id}"
"""Stands for the run's id in the folders of facts, which are found before the run has one."""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """One machine as it was when the plan was made."""

    cpu_count: int
    device_ids: tuple[str, ...] | None = ()
    """Accelerators that a job may use; empty on CPU, None if a scheduler gives them out."""
    used_ids: tuple[str, ...] = ()
    """Those of ``device_ids`` that some process uses; read if the job asks for unused ones."""
    most_processes: int | None = None
    """How many it can reasonably start, agents and workers together; None if not known."""
    address: str | None = None
    """Where other nodes reach it; None: by the node's name, or by loopback."""
    interface: str | None = None
    """The network interface that has the address, where one was chosen."""
    loopback: str | None = "lo"
    """The interface of nodes that all run here; None if they may run on several machines."""
    clock_offset_s: float = 0.0
    """Its wall clock less the launcher's."""
    slots: int | None = None
    """How many workers it runs if the job leaves that open; None: one for each core."""

    @property
    def cores(self) -> str:
        """Its cores in words."""
        return f"{self.cpu_count} CPU core{'s' * (self.cpu_count != 1)}"

    @property
    def name(self) -> str:
        """As a person calls it; empty for a machine that needs no name."""
        return ""

    @property
    def cpu_workers(self) -> int:
        """How many workers it runs if the job leaves that open."""
        return self.slots or self.cpu_count


@dataclass(frozen=True, kw_only=True)
class Folders:
    """A node's folders, absolute, with ``RUN_ID`` for the run's id.

    They lie on the node's machine and are mounted into its container, if it has one. With
    ``in_container`` they are paths in the container, where the target itself provides the folders.
    """

    run: str
    checkpoints: str
    cwd: str = "/"
    """What relative paths of the job start from."""
    code: str = ""
    """Where the target puts the training code; empty if nodes see it where the launcher does."""
    in_container: bool = False

    def of_run(self, run_id: str) -> Folders:
        """The folders of one run."""
        return replace(
            self,
            run=self.run.replace(RUN_ID, run_id),
            checkpoints=self.checkpoints.replace(RUN_ID, run_id),
            cwd=self.cwd.replace(RUN_ID, run_id),
            code=self.code.replace(RUN_ID, run_id),
        )


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """Where one node will run. None: as ``TargetFacts`` says for all nodes."""

    name: str | None = None
    """Its host name, where the target gives one."""
    machine: MachineFacts | None = None
    folders: Folders | None = None


SHELL_WINS = ("OMP_NUM_THREADS", "PYTHONUNBUFFERED", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that the plan sets too. Whoever has set one has a reason, and none breaks a run that
would work under torchrun."""


def parse_shell(environ: Mapping[str, str]) -> Env:
    """The shell's values that win over the plan's own. An empty one counts too."""
    return tuple((name, environ[name]) for name in SHELL_WINS if name in environ)


def describe_ignored(environ: Mapping[str, str]) -> str | None:
    """One line on the shell's variables that do not reach the workers; None if there are none."""
    names = [name for name in protocol.STALE_VARIABLES if name in environ]
    names += [protocol.OWN_STORE] if environ.get(protocol.OWN_STORE, "1") != "1" else []
    if not names:
        return None
    what = f"{', '.join(names)} of this shell {'do' if len(names) > 1 else 'does'} not count"
    return f"{what}: the launcher sets what each worker needs (docs/worker-environment.md)"


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """A target as it was when the plan was made.

    ``machine`` is where all nodes run. If ``nodes`` are given, each node has a machine of its own,
    equal to ``machine`` unless it names another, and the run has at most that many nodes.
    ``image`` is what containers start from, None if nodes are processes. ``torch_version`` is None
    if not known. ``run_root`` and ``cwd`` are absolute folders of the launcher's machine.
    """

    target: str
    place: str = ""
    """Where jobs run, in words: ``local processes``. Empty: the target's name says it."""
    accelerator: str
    machine: MachineFacts
    image: str | None = None
    agent_in_image: bool = False
    """Whether the image holds this launcher's node agent."""
    torch_version: str | None = None
    run_root: str
    cwd: str
    ports: tuple[int, ...] = ()
    """Free TCP ports: the rendezvous', then those of stores that take over on the same machine."""
    shares_storage: bool = True
    """Whether all nodes see the same checkpoint folder."""
    terminal: bool = False
    """Whether a person watches, and progress may be a bar."""
    nodes: tuple[NodeFacts, ...] = ()
    shell: Env = ()
    """This shell's values of ``SHELL_WINS``, where its variables reach the workers."""
    agent: AgentSettings | None = None
    """The agent's settings that the target decides, with ``RUN_ID`` in folders. None if it decides
    none, as the launcher follows the workers' own files."""
    own: TargetSettings | None = None
    """The target's own settings: the plan carries them to its renderer."""

    def describe(self) -> str:
        """Where a job runs, and on what, in words."""
        place = self.place or self.target
        if self.accelerator == "cuda":
            machines = [node.machine for node in self.nodes if node.machine] or [self.machine]
            known = [each.device_ids for each in machines if each.device_ids is not None]
            return f"{place}, {f'{sum(map(len, known))} ' if known else ''}GPUs, NCCL"
        return f"{place}, no GPU: gloo, {self.machine.cores}"
