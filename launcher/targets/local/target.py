"""Target ``local``: processes of this machine, the embedded default where no Docker engine runs.

What only a run needs is imported where it is used, as rendering takes no longer than its imports.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.errors import ExitCode, KeyInputError, TargetError
from launcher.contract.node_plan import NodePlan, Static
from launcher.contract.reasons import NodeState
from launcher.follow.target import LiveRun, NodeObservation, Observation, Target, Traits
from launcher.plan.agent_task import STORE_CANDIDATES
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.rendezvous import endpoint_of
from launcher.plan.target_facts import MachineFacts, TargetFacts
from launcher.targets import proc
from launcher.targets.agent_files import write_agent_files
from launcher.targets.interpreter import find_torch
from launcher.targets.local.render import LocalArtifact, LocalSettings, Process, render_local
from launcher.targets.machine import read_capacity, read_gpus

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec
    from launcher.targets.local.early import EarlyAgent
    from launcher.targets.local.template import Settled, Template

PORTS = range(20000, 32000)
"""Below the range from which kernels hand out ports to outgoing connections."""
SWEEP_LIMIT_S = 5.0
"""How long SIGKILL is repeated: only processes in uninterruptible sleep outlive it."""
NodeKey = tuple[str, int, int]
"""Run id, node index, incarnation."""


class LocalTarget(Target):
    """Runs each node's agent as a process of this machine."""

    traits = Traits(sees_other_machines=False)
    name = "local"

    def __init__(
        self, run_root: Path, clock: Clock | None = None, *, early: EarlyAgent | None = None
    ) -> None:
        """``early``: the first node's process, which the caller ends where no run takes it."""
        super().__init__()
        self._early = early
        self.run_id = early.run_id if early else ""
        self._run_root = run_root
        self._clock = clock or SystemClock()
        self._free_ports: tuple[int, ...] = ()
        self._pids: dict[NodeKey, int | None] = {}
        """Process id of each node that this launcher started; None before its fork."""
        self._codes: dict[NodeKey, int] = {}
        """Exit codes of nodes that have never been a process."""
        self._templates: dict[str, Template] = {}
        """By run id, of runs with several nodes."""

    def facts(self, job: JobSpec) -> TargetFacts:
        python, torch_version = find_torch(job.local.python)
        devices = read_gpus() if not job.is_on_cpu else ()
        on_linux = sys.platform == "linux"
        cores = len(os.sched_getaffinity(0)) if on_linux else os.cpu_count() or 1
        ports = find_free_ports(random.SystemRandom(), STORE_CANDIDATES)
        self._free_ports = ports
        return TargetFacts(
            target=self.name,
            place="local processes",
            accelerator="cuda" if devices else "cpu",
            machine=MachineFacts(
                cpu_count=cores,
                device_ids=devices,
                capacity=read_capacity(cores),
                loopback="lo" if on_linux else "lo0",
            ),
            torch_version=torch_version,
            run_root=str(self._run_root.absolute()),
            cwd=str(Path.cwd()),
            ports=ports,
            terminal=sys.stderr.isatty(),
            own=LocalSettings(python=python),
        )

    def check(self, plan: LaunchPlan) -> None:
        from launcher.runs.folder import check_folder
        from launcher.targets.preflight import check_here, read_secrets

        read_secrets(plan.nodes[0].secrets, os.environ)
        check_folder(Path(plan.checkpoint_dir))
        self.notes += find_overruled(plan, os.environ)
        check_here(plan.nodes[0], LocalSettings.of(plan).python)
        rendezvous = plan.nodes[0].rendezvous
        serves = isinstance(rendezvous, Static) or rendezvous.is_host
        port = int(endpoint_of(rendezvous).rpartition(":")[2])
        # Those that this launcher chose were free; one that is lost in a race is chosen anew.
        if serves and port not in self._free_ports and not is_free(port):
            fix = "name another, or leave it out: the launcher then takes a free one"
            raise KeyInputError(("rdzv", "port"), f"{port} is in use on this machine", fix)

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> LocalArtifact:
        return render_local(plan, only)

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        from launcher.runs.folder import make_folders

        artifact = self.render(plan, only)
        make_folders(artifact.folders)
        write_agent_files(artifact.agent)
        for process in artifact.processes:
            if process.node.incarnation:  # before the first, nothing can be there to look for
                self.stop(plan.run_id, plan.stop_grace_s, (process.node.node_index,))
        early, self._early = self._early, None
        alone = len(artifact.processes) == 1
        for first in () if alone else artifact.processes[:1]:
            with self._told(plan.run_id, first):
                self._open_template(plan, first, early)
        for process in artifact.processes:
            with self._told(plan.run_id, process):
                pid = early.become(process, plan) if early and alone else None
                self._pids[plan.run_id, *process.key] = pid or self._start(plan.run_id, process)

    @contextlib.contextmanager
    def _told(self, run_id: str, process: Process) -> Iterator[None]:
        """Raises ``TargetError`` for what a start meets, and then leaves nothing of the run."""
        try:
            yield
        except OSError as error:
            from launcher.agent import disk
            from launcher.runs.folder import full_disk

            self.stop(run_id, 0)
            if disk.is_full(error):
                raise full_disk(Path(process.console).parent) from error
            raise TargetError(
                f"cannot start {process.argv[0]} in {process.cwd}: {error.strerror}",
                "check local.python and workdir of the job",
            ) from error

    def _open_template(self, plan: LaunchPlan, first: Process, early: EarlyAgent | None) -> None:
        if plan.agent is None or sys.platform != "linux" or plan.run_id in self._templates:
            if early:
                early.end()
            return
        from launcher.targets.local.template import Template, start_template

        pid = early.take(first, plan) if early else 0
        self._templates[plan.run_id] = (
            Template(pid, early.env, first) if early and pid else start_template(first)
        )

    def _start(self, run_id: str, process: Process) -> int | None:
        """The pid of a node; None where the run's template will fork it. Raises ``OSError``."""
        template = self._templates.get(run_id)
        # Made here, as it is here that a full disk is told.
        Path(process.console).touch()
        return None if template and template.order(process) else _start_alone(process)

    def _settle(self, run_id: str, settled: Settled, ended: Callable[[int], bool]) -> None:
        """Takes in what a template tells; nodes that it refuses are started, but for the ended."""
        self._codes |= {(run_id, *key): code for key, code in settled.codes.items()}
        self._pids |= {(run_id, *key): pid for key, pid in settled.pids.items()}
        for process in settled.refused:
            if ended(process.node.node_index):
                self._codes[run_id, *process.key] = ExitCode.PREEMPTED
            else:
                with self._told(run_id, process):
                    self._pids[run_id, *process.key] = _start_alone(process)

    def observe(self, plan: LaunchPlan) -> Observation:
        if template := self._templates.get(plan.run_id):
            self._settle(plan.run_id, template.settle(), lambda _: False)
        if any(run_id == plan.run_id for run_id, _, _ in self._pids):
            nodes = tuple(self._observe_child(plan.run_id, node) for node in plan.nodes)
        else:
            seen = find_nodes(plan.run_id)
            nodes = tuple(_observe_other(plan.run_dir, node, seen) for node in plan.nodes)
        return Observation(run_id=plan.run_id, nodes=nodes)

    def _observe_child(self, run_id: str, node: NodePlan) -> NodeObservation:
        key = (run_id, node.node_index, node.incarnation)
        pid = self._pids.get(key)
        code = self._codes.get(key) if pid is None else proc.poll(pid)
        return _observation(node, key in self._pids, code)

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        if only is not None:
            self._stop_nodes(run_id, only, grace_s)
            return
        if template := self._templates.pop(run_id, None):
            self._settle(run_id, template.end(), lambda _: True)
        self._end({protocol.RUN_ID: run_id}, grace_s)

    def _stop_nodes(self, run_id: str, only: tuple[int, ...], grace_s: float) -> None:
        template = self._templates.get(run_id)
        if template and template.awaits(only):
            self._settle(run_id, self._templates.pop(run_id).end(), lambda index: index in only)
        for index in only:
            self._end({protocol.RUN_ID: run_id, protocol.NODE_INDEX: str(index)}, grace_s)

    def live_runs(self) -> tuple[LiveRun, ...]:
        return tuple(
            LiveRun(
                run_id=run_id,
                run_dir=proc.variable_of(pids[0], protocol.RUN_DIR) or "",
                running_nodes=len(find_agents(pids)),
            )
            for run_id, pids in sorted(proc.find_runs().items())
        )

    def _end(self, label: dict[str, str], grace_s: float) -> None:
        # SIGTERM goes to the agents alone: they end their workers, and would report a worker
        # that got one of its own as failed.
        asked: set[int] = set()
        deadline = self._clock.monotonic() + grace_s
        while agents := find_agents(proc.find(**label)):
            # One that was forked just now is not among those that were asked.
            proc.send(tuple(pid for pid in agents if pid not in asked), signal.SIGTERM)
            asked |= {*agents}
            if self._clock.monotonic() >= deadline:
                break
            self._clock.sleep(0.05)
        deadline = self._clock.monotonic() + SWEEP_LIMIT_S
        while (left := proc.find(**label)) and self._clock.monotonic() < deadline:
            proc.send(left, signal.SIGKILL)
            self._clock.sleep(0.02)


def _start_alone(process: Process) -> int:
    from launcher.targets.local.template import environment_of

    env, console = environment_of(process), Path(process.console)
    return proc.start(process.argv, cwd=process.cwd, env=env, console=console)


def find_overruled(plan: LaunchPlan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """A note on each variable of the caller that its workers find with another value. Pure.

    None inside a worker of another run, where these variables are that run's.
    """
    if protocol.RUN_ID in environ:
        return ()
    env = dict(plan.nodes[0].env)
    return tuple(
        f"{name}={environ[name]} of this environment does not reach the workers, who find "
        f"{name}={env[name]}; if it is the script's own, rename it: MY_{name}"
        for name in (protocol.RUN_DIR, protocol.CHECKPOINT_DIR)
        if environ.get(name, env[name]) != env[name]
    )


def find_nodes(run_id: str) -> frozenset[tuple[int, int]]:
    """The node index and incarnation of each living agent of a run, whoever started it."""
    agents = find_agents(proc.find(**{protocol.RUN_ID: run_id}))
    told = (
        (proc.variable_of(pid, protocol.NODE_INDEX), proc.variable_of(pid, protocol.INCARNATION))
        for pid in agents
    )
    return frozenset((int(index), int(number)) for index, number in told if index and number)


def _observe_other(
    run_dir: str, node: NodePlan, seen: frozenset[tuple[int, int]]
) -> NodeObservation:
    """A node that another launcher started: by its processes, else by the outcome it has left."""
    if (node.node_index, node.incarnation) in seen:
        return _observation(node, True, None)
    from launcher.runs.folder import RunFolder
    from launcher.runs.node_outcomes import read_node_outcome

    outcome = read_node_outcome(RunFolder(Path(run_dir)), node.node_index, node.incarnation)
    return _observation(node, outcome is not None, outcome.exit_code if outcome else None)


def _observation(node: NodePlan, is_known: bool, exit_code: int | None) -> NodeObservation:
    ran = NodeState.RUNNING if exit_code is None else NodeState.EXITED
    return NodeObservation(
        node_index=node.node_index,
        incarnation=node.incarnation,
        state=ran if is_known else NodeState.MISSING,
        exit_code=exit_code,
    )


def find_agents(pids: tuple[int, ...]) -> tuple[int, ...]:
    """Those of a run's processes that the launcher started itself.

    Workers have TORCHELASTIC_RUN_ID, and may be orphans. Forked workers show no such variable, but
    have a parent in the run. A run's template is no node.
    """
    return tuple(
        pid
        for pid in pids
        if proc.parent_of(pid) not in pids
        and proc.variable_of(pid, "TORCHELASTIC_RUN_ID") is None
        and proc.variable_of(pid, protocol.NODE_INDEX) is not None
    )


def is_free(port: int) -> bool:
    """Whether the port is free now, and this user may listen at it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def find_free_ports(random_source: random.Random, count: int) -> tuple[int, ...]:
    """Free ports, picked at random: two runs that start at once rarely choose the same.

    A run that loses such a race fails to bind and is started again.
    """
    free = filter(is_free, random_source.sample(PORTS, k=200))
    found = tuple(itertools.islice(free, count))
    if len(found) == count:
        return found
    raise TargetError(
        "no free TCP port between 20000 and 32000 on 127.0.0.1",
        "ss -ltnp lists the processes that listen there: end those that are not needed",
    )
