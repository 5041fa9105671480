"""Target ``local``: processes of this machine, the default for a job that needs no container; picks
free ports."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.agent import disk
from launcher.contract import protocol
from launcher.contract.causes import NodeState
from launcher.contract.errors import KeyInputError, TargetError
from launcher.contract.node_plan import NodePlan, Static
from launcher.contract.process_stat import lives, parent_of, read_record, start_of, write_record
from launcher.contract.waits import SOON_S, wait_until
from launcher.follow.target import Door, LiveRun, NodeObservation, Observation, Target, Traits
from launcher.plan.agent_task import STORE_CANDIDATES
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.rendezvous import endpoint_of
from launcher.plan.target_facts import TargetFacts, describe_ignored
from launcher.runs.folder import RunFolder, check_folder, full_disk, make_folders
from launcher.targets import process_table
from launcher.targets.agent_files import write_agent_files
from launcher.targets.machine import PORTS, is_free
from launcher.targets.preflight import check_here, read_secrets
from launcher.targets.processes import (
    Process,
    ProcessArtifact,
    ProcessSettings,
    read_facts,
    render_processes,
)
from launcher.targets.subprocesses import children

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

PORTS_TRIED = 200
"""So many ports at random are looked at for free ones."""
SWEEP_LIMIT_S = 5.0
"""How long SIGKILL is repeated: only processes in uninterruptible sleep outlive it."""
NodeKey = tuple[str, int, int]
"""Run id, node index, incarnation."""


class LocalTarget(Target):
    """Runs each node's agent as a process of this machine."""

    traits = Traits(sees_other_machines=False, takes_shell=True)
    name = "local"

    def __init__(self, run_root: Path) -> None:
        super().__init__()
        self._run_root = run_root
        self._free_ports: tuple[int, ...] = ()
        self._pids: dict[NodeKey, int] = {}
        """Process id of each node that this launcher started."""

    def facts(self, job: JobSpec) -> TargetFacts:
        self._free_ports = find_free_ports(random.SystemRandom(), STORE_CANDIDATES)
        facts = read_facts(job, self.name, self._run_root, self._free_ports)
        python = ProcessSettings.of(facts).python
        is_other = python != sys.executable and not job.local.python
        why = f" (from PATH, as {sys.executable} has no torch)" if is_other else ""
        self.notes += filter(None, (describe_ignored(os.environ),))
        place = f"local processes, {python} with torch {facts.torch_version}{why}"
        return replace(facts, place=place, terminal=sys.stderr.isatty())

    def preview(self, plan: LaunchPlan, made_by: str, *, embed: bool = False) -> str:
        """As ``Target.preview``. Raises ``KeyInputError`` for what is not here to be run."""
        check_here(plan.nodes[0])
        return super().preview(plan, made_by, embed=embed)

    def check(self, plan: LaunchPlan) -> None:
        read_secrets(plan.nodes[0].secrets, os.environ)
        check_folder(Path(plan.checkpoint_dir))
        check_here(plan.nodes[0])
        rendezvous = plan.nodes[0].rendezvous
        serves = isinstance(rendezvous, Static) or rendezvous.is_host
        port = int(endpoint_of(rendezvous).rpartition(":")[2])
        # Ports that this launcher chose were free; if another run takes one, it chooses anew.
        if serves and port not in self._free_ports and not is_free(port, protocol.LOOPBACK):
            fix = "name another, or leave it out: the launcher then takes a free one"
            raise KeyInputError(("rdzv", "port"), f"{port} is in use on this machine", fix)

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> ProcessArtifact:
        return render_processes(plan, only)

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        artifact = self.render(plan, only)
        make_folders(artifact.folders)
        write_agent_files(artifact.agent)
        for process in artifact.processes:
            if process.node.incarnation:  # the first has no earlier one to end
                self.stop(plan.run_id, plan.stop_grace_s, (process.node.node_index,))
        for process in artifact.processes:
            self._start(plan.run_id, process)

    def _start(self, run_id: str, process: Process) -> None:
        """Starts one node; if that fails, ends the whole run."""
        node = process.node
        try:
            pid = children.start(
                process.argv, cwd=process.cwd, env=_env_of(process), console=Path(process.console)
            )
        except OSError as error:
            self.stop(run_id, 0)
            if disk.is_full(error):
                raise full_disk(Path(process.console).parent) from error
            raise TargetError(
                f"cannot start {process.argv[0]} in {process.cwd}: {error.strerror}",
                "check local.python and workdir of the job",
            ) from error
        self._pids[run_id, node.node_index, node.incarnation] = pid
        write_record(Path(node.log_dir), {"pid": pid, "start": start_of(pid)})

    def observe(self, plan: LaunchPlan) -> Observation:
        if any(run_id == plan.run_id for run_id, _, _ in self._pids):
            pids = [self._pids.get((plan.run_id, n.node_index, n.incarnation)) for n in plan.nodes]
            nodes = tuple(
                _observation(node, pid is not None, None if pid is None else children.poll(pid))
                for node, pid in zip(plan.nodes, pids, strict=True)
            )
        else:
            nodes = tuple(_observe_other(plan.run_dir, node) for node in plan.nodes)
        return Observation(run_id=plan.run_id, nodes=nodes)

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        for index in (None,) if only is None else only:
            self._end(run_id, index, grace_s)

    def door(self, plan: LaunchPlan, node_index: int) -> Door:
        (process,) = self.render(plan, (node_index,)).processes
        given = (f"{name}={value}" for name, value in process.env)
        words = ("env", f"--chdir={process.cwd}", *given)
        archive = f"{plan.run_dir}/{protocol.AGENT_ARCHIVE}"
        return Door(words=words, at_terminal=words, python=process.argv[0], archive=archive)

    def live_runs(self) -> tuple[LiveRun, ...]:
        return tuple(
            LiveRun(run_id=run_id, run_dir=_run_dir_of(pids), running_nodes=len(find_agents(pids)))
            for run_id, pids in sorted(process_table.find_runs().items())
        )

    def _end(self, run_id: str, index: int | None, grace_s: float) -> None:
        # SIGTERM goes to the agents alone: they end their workers, and would report a worker
        # that gets SIGTERM from elsewhere as failed.
        process_table.send(find_agents(self._find(run_id, index)), signal.SIGTERM)
        wait_until(lambda: not find_agents(self._find(run_id, index)), grace_s, SOON_S)
        deadline = time.monotonic() + SWEEP_LIMIT_S
        while (left := self._find(run_id, index)) and time.monotonic() < deadline:
            process_table.send(left, signal.SIGKILL)
            time.sleep(0.02)

    def _find(self, run_id: str, index: int | None) -> tuple[int, ...]:
        """The processes of a run, or of one of its nodes."""
        label = {protocol.RUN_ID: run_id}
        label |= {} if index is None else {protocol.NODE_INDEX: str(index)}
        return tuple(sorted({*process_table.find(**label)}))


def _env_of(process: Process) -> dict[str, str]:
    given = {k: v for k, v in os.environ.items() if k not in protocol.STALE_VARIABLES}
    return given | dict(process.env)


def _observe_other(run_dir: str, node: NodePlan) -> NodeObservation:
    """A node that another launcher started, by its recorded process, else by its outcome.

    Not by variables of processes, which only the user who started them can read.
    """
    run = RunFolder(Path(run_dir))
    if lives(read_record(run.node_dir(node.node_index, node.incarnation))):
        return _observation(node, True, None)
    return _observation(node, False, None).with_outcome(run)


def _observation(node: NodePlan, is_known: bool, exit_code: int | None) -> NodeObservation:
    ran = NodeState.RUNNING if exit_code is None else NodeState.EXITED
    return NodeObservation(
        node_index=node.node_index,
        incarnation=node.incarnation,
        state=ran if is_known else NodeState.MISSING,
        exit_code=exit_code,
    )


def _run_dir_of(pids: tuple[int, ...]) -> str:
    """The run folder, from the first process that still lives: workers' children come and go."""
    folders = (process_table.variable_of(pid, protocol.RUN_DIR) for pid in pids)
    return next(filter(None, folders), "")


def find_agents(pids: tuple[int, ...]) -> tuple[int, ...]:
    """Those of a run's processes that the launcher started itself.

    Workers have TORCHELASTIC_RUN_ID, even as orphans. Forked workers do not show it, but have a
    parent in the run.
    """
    return tuple(
        pid
        for pid in pids
        if process_table.variable_of(pid, "TORCHELASTIC_RUN_ID") is None
        and parent_of(pid) not in (None, *pids)  # None: it has ended meanwhile
    )


def find_free_ports(random_source: random.Random, count: int) -> tuple[int, ...]:
    """Free ports, picked at random: two runs that start at once rarely choose the same.

    A run that loses such a race fails to bind and is started again.
    """
    tried = random_source.sample(PORTS, k=PORTS_TRIED)
    free = (port for port in tried if is_free(port, protocol.LOOPBACK))
    ports = tuple(itertools.islice(free, count))
    if len(ports) == count:
        return ports
    raise TargetError(
        "no free TCP port between 20000 and 32000 on 127.0.0.1",
        "ss -ltnp lists the processes that listen there: end those that are not needed",
    )
