"""Target ``hosts``: machines reached over SSH, one node on each, without a server or a daemon.

On a host a small keeper starts each node and holds its lease; a line to each host brings what the
run writes, and tells the keeper that the launcher lives. Everything is asked of all hosts at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.code.record import read_kept_code
from launcher.contract import protocol, typed
from launcher.contract.causes import NodeState
from launcher.contract.errors import TargetError
from launcher.contract.node_plan import NodePlan
from launcher.contract.records import dump_record
from launcher.follow.look import keep_look
from launcher.follow.requests import render_scale
from launcher.follow.target import Door, NodeObservation, Observation, Target, Traits
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import TargetFacts
from launcher.runs.folder import RunFolder
from launcher.targets.agent_files import make_token
from launcher.targets.docker_options import enter_container, plan_containers
from launcher.targets.hosts import nodes
from launcher.targets.hosts.connection import MISSING, HostLine, copy_once, send_beats
from launcher.targets.hosts.inventory.inventory import Inventory, read_inventory_of
from launcher.targets.hosts.nodes import provide_image, read_image
from launcher.targets.hosts.plan import TARGET, find_caller, plan_facts, run_dir_on
from launcher.targets.hosts.program.messages import KeeperSpec, NodeSeen
from launcher.targets.hosts.program.requests import ask_launcher, take_look
from launcher.targets.hosts.program.session import start_node
from launcher.targets.hosts.render import HostNode, HostsArtifact, render_hosts
from launcher.targets.hosts.settings import HostsSettings
from launcher.targets.hosts.ssh.client import Ssh, joined
from launcher.targets.hosts.ssh.session import Session
from launcher.targets.hosts.survey import survey_hosts
from launcher.targets.preflight import check_in_code, check_there, read_secrets

if TYPE_CHECKING:
    from launcher.contract.clock import Clock
    from launcher.contract.ending import Ending
    from launcher.contract.reports.look import LookRequest
    from launcher.follow.target import Artifact
    from launcher.job.spec import JobSpec

LOST_AFTER_S = 12.0
"""Silence after which a host's nodes count as lost: they have ended by then (FOLLOWED_S)."""
OUTPUT_LIMIT_S = 20.0
"""How long ``logs -f`` waits for a host's first word."""
AWAY_RETRY_S = 30.0
"""A host that was not reached is not asked about a run again before."""
_away: dict[str, tuple[float, TargetError]] = {}
"""When a host was last not reached, and why, by its name."""


class HostsTarget(Target):
    """Runs each node on a machine of an inventory."""

    name = TARGET
    traits = Traits(sends_code=True, held_by="launcher.targets.hosts.held:HeldHostsTarget")

    def __init__(
        self,
        run_root: Path,
        inventory: Inventory | None = None,
        filters: Mapping[str, Any] | None = None,
    ) -> None:
        """``filters`` apply to the inventory that a job names."""
        super().__init__()
        # From the start: an interrupt just before ``submit`` must not wait until all is sent.
        self.is_sending = True
        self._run_root, self._inventory = run_root, inventory
        self._ssh: Ssh | None = None
        self._filters = filters or {}
        self._submitted: LaunchPlan | None = None
        self._lines: dict[int, HostLine] = {}
        self._beats: threading.Event | None = None
        self._refused: dict[int, str] = {}
        """Nodes that could not be started again, and why."""

    # -- before a run -----------------------------------------------------------------------------

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``. Raises ``InputError`` if no hosts are named."""
        inventory = self._inventory = self._inventory or read_inventory_of(job, **self._filters)
        self._ssh = Ssh(inventory)
        hosts, port, notes = survey_hosts(self._ssh, inventory, job)
        self.notes += notes
        image = None if job.hosts.runtime == "python" else read_image(hosts[0].image or "")
        known = [image.torch_version if image else "", *(host.torch_version for host in hosts)]
        settings = HostsSettings(
            hosts=hosts,
            ssh_config=inventory.ssh_config,
            containers=plan_containers(job, None),
        )
        return plan_facts(
            job,
            settings,
            image=image.name if image else None,
            torch_version=next(filter(None, known), None),
            port=port,
            run_root=str(self._run_root.absolute()),
            cwd=str(Path.cwd()),
            inner=find_caller(self.code.record, Path.cwd()) if self.code else None,
            terminal=sys.stderr.isatty(),
        )

    def has_image(self, job: JobSpec) -> bool:
        return job.hosts.runtime != "python"

    def _connect(self, plan: LaunchPlan) -> Ssh:
        """With the inventory that was given, or else as the plan's was."""
        settings = HostsSettings.of(plan)
        if self._ssh is None:
            self._ssh = Ssh(self._inventory or Inventory(hosts=(), ssh_config=settings.ssh_config))
        self._ssh.machines = {host.name: host.machine for host in settings.hosts}
        return self._ssh

    def check(self, plan: LaunchPlan) -> None:
        read_secrets(plan.nodes[0].secrets, os.environ)
        if self.code is not None:
            check_in_code(self.code)
        elif plan.image is None:
            host = HostsSettings.of(plan).hosts[0]
            check_there(plan.nodes[0], run_dir_on(host, plan.run_id))

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> Artifact:
        return render_hosts(plan, only)

    # -- start ------------------------------------------------------------------------------------

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.submit``: takes all leases, then sends all files, then starts all nodes.

        With ``only``, ``observe`` reports nodes whose host is away or refuses as missing.
        """
        artifact = render_hosts(plan, only)
        secrets = read_secrets(plan.nodes[0].secrets, os.environ)
        self._submitted = plan
        started = [node.node.node_index for node in artifact.nodes]
        for index in started:
            self._refused.pop(index, None)
        # With ``only`` the other nodes run, and need their grace.
        self.is_sending = only is None
        try:
            self._start(plan, artifact, secrets, needs_all=only is None)
        except TargetError as error:
            if only is None:
                with contextlib.suppress(TargetError):
                    self.stop(plan.run_id, 0)
                raise
            # A restart of all nodes has closed the lines.
            self._open_lines(plan)
            self._refused |= dict.fromkeys(started, _in_a_line(error))
        finally:
            self.is_sending = False

    def _start(
        self, plan: LaunchPlan, artifact: HostsArtifact, secrets: dict[str, str], *, needs_all: bool
    ) -> None:
        """Starts the nodes on all hosts; without ``needs_all``, on those that are reached."""
        index_of = {node.host.name: node.node.node_index for node in artifact.nodes}
        ssh, away = self._connect(plan), {} if needs_all else self._find_silent(index_of)
        hosts = [node.host.host for node in artifact.nodes if node.host.name not in away]
        with ssh.sessions(hosts, away=None if needs_all else away) as sessions:
            reached = [node for node in artifact.nodes if node.host.name in sessions]
            plan, reached = self._place(plan, reached, sessions)
            self._refused |= {index_of[name]: _in_a_line(error) for name, error in away.items()}

            def each(work: Callable[[HostNode, Session], object]) -> None:
                ssh.each(lambda node: work(node, sessions[node.host.name]), reached)

            def launch(node: HostNode, session: Session) -> None:
                session.call(start_node, node=self._spec(plan, node).having(secrets=secrets))
                self._lines[node.node.node_index].started(nodes.key_of(node.node))

            # Take leases before sending anything, which may take minutes.
            each(lambda node, session: self._acquire_lease(plan, node, session))
            self._open_lines(plan)
            code = self.code or (read_kept_code(Path(plan.run_dir)) if plan.code else None)
            agent = artifact.files.archive if artifact.files else None
            token = make_token(Path(plan.run_dir)) if artifact.files else ""
            each(lambda node, session: nodes.prepare(plan, node, agent, code, token, session))
            self._provide_image(plan, [sessions[node.host.name] for node in reached])
            self.is_sending = False
            # Last: no rendezvous timeout may run before every host is ready.
            each(launch)

    def _place(
        self, plan: LaunchPlan, nodes: list[HostNode], sessions: Mapping[str, Session]
    ) -> tuple[LaunchPlan, list[HostNode]]:
        """The plan, and its ``nodes`` to start, as their places are now."""
        return plan, nodes

    def _acquire_lease(self, plan: LaunchPlan, node: HostNode, session: Session) -> None:
        """Takes what the node needs of its host."""
        nodes.acquire_lease(plan, node, session)

    def _provide_image(self, plan: LaunchPlan, sessions: Iterable[Session]) -> None:
        if plan.image is not None:
            image, ssh = read_image(plan.image), self._connect(plan)
            ssh.each(lambda session: provide_image(image, ssh, session), sessions)

    def _spec(self, plan: LaunchPlan, node: HostNode) -> KeeperSpec:
        """What the node's keeper does."""
        return node.spec

    def _find_silent(self, index_of: Mapping[str, int]) -> dict[str, TargetError]:
        """Those of the hosts, by name, that are known to be silent: do not wait for them again."""
        lines = {name: self._lines.get(index) for name, index in index_of.items()}
        silent = [n for n, line in lines.items() if line and line.silent_s() >= LOST_AFTER_S / 2]
        return {name: TargetError(f"{name}: it does not answer") for name in silent}

    # -- while it runs ----------------------------------------------------------------------------

    def bring_output(self, run: RunFolder, plan: LaunchPlan, *, follow: bool) -> Iterator[None]:
        if not follow or not self._lives(plan):
            return
        self._open_lines(plan, follows=False)
        for line in self._lines.values():
            line.has_reported.wait(OUTPUT_LIMIT_S)
        while run.read_outcome() is None and self._lives(plan):
            yield

    def _lives(self, plan: LaunchPlan) -> bool:
        return any(node.is_alive for node in self.observe(plan).nodes)

    def scale(self, run: RunFolder, plan: LaunchPlan, nodes: int) -> bool:
        # The launcher that follows the run does it, on whichever machine it is.
        host = HostsSettings.of(plan).hosts[plan.nodes[0].node_index]
        run_dir, text = run_dir_on(host, plan.run_id), render_scale(nodes)
        with self._connect(plan).open(host.host) as session:
            name = protocol.SCALE_REQUEST
            if not session.call(ask_launcher, run_dir=run_dir, name=name, text=text):
                raise TargetError(
                    f"the launcher of {plan.run_id} does not answer",
                    typed.command("status", plan.run_id),
                )
        return True

    def look_at_workers(
        self, run: RunFolder, plan: LaunchPlan, request: LookRequest, limit_s: float, clock: Clock
    ) -> Mapping[int, str]:
        """As ``Target.look_at_workers``; a host that is not reached is a node that did not look."""

        def look_at(index: int) -> str:
            host = HostsSettings.of(plan).hosts[index]
            try:
                with self._connect(plan).open(host.host) as session:
                    files = session.call_within(
                        limit_s + 5.0,  # The host needs some time on top of what its node has.
                        take_look,
                        run_dir=run_dir_on(host, plan.run_id),
                        node=index,
                        id=request.id,
                        request=dump_record(request),
                        wait_s=limit_s,
                    )
            except TargetError as error:
                return error.what
            return keep_look(run, index, request.id, files)

        indices = [node.node_index for node in plan.nodes]
        reasons = zip(indices, self._connect(plan).each(look_at, indices), strict=True)
        return {index: why for index, why in reasons if why}

    def door(self, plan: LaunchPlan, node_index: int) -> Door:
        host = HostsSettings.of(plan).hosts[node_index]
        ssh = self._connect(plan)
        door = Door(
            words=(),
            at_terminal=(),
            python=host.python,
            archive=f"{run_dir_on(host, plan.run_id)}/{protocol.AGENT_ARCHIVE}",
        )
        if host.runtime == "docker":
            door = enter_container(plan.nodes[node_index].name)
        # Names of containers need no quotes; a shell there reads all that follows ssh's own words.
        return replace(
            door,
            words=(*ssh.argv(host.host), *door.words),
            at_terminal=(*ssh.argv(host.host, terminal=True), *door.at_terminal),
            by_shell=True,
        )

    def _open_lines(self, plan: LaunchPlan, *, follows: bool = True) -> None:
        ssh = self._connect(plan)
        for index in (node.node_index for node in plan.nodes):
            if index not in self._lines:
                self._lines[index] = HostLine(ssh, plan, index, self.clock, follows=follows)
        if self._beats is None:
            self._beats = send_beats(lambda: tuple(self._lines.values()))

    def observe(self, plan: LaunchPlan) -> Observation:
        observed, error = self.observe_reachable(plan)
        if error:
            raise error
        return observed

    def observe_reachable(self, plan: LaunchPlan) -> tuple[Observation, TargetError | None]:
        states, _, error = ({}, False, None) if self._lines else self._copy(plan)
        observed = tuple(self._observe(plan, node, states) for node in plan.nodes)
        return Observation(run_id=plan.run_id, nodes=observed), error

    def _observe(
        self, plan: LaunchPlan, node: NodePlan, states: Mapping[str, NodeSeen]
    ) -> NodeObservation:
        index, key = node.node_index, nodes.key_of(node)
        known = states.get(key, MISSING)
        if line := self._lines.get(index):
            known = line.state(key)
        if index in self._refused:
            known = NodeSeen(state="missing", detail=self._refused[index])
        elif line and line.silent_s() > LOST_AFTER_S and known.state == "running":
            host = HostsSettings.of(plan).hosts[index]
            known = NodeSeen(state="missing", detail=f"{host.name} does not answer")
        observed = NodeObservation(
            node_index=index,
            incarnation=node.incarnation,
            state=NodeState(known.state),
            exit_code=known.exit_code,
            out_of_memory=known.out_of_memory,
            detail=known.detail,
        )
        return observed.with_outcome(RunFolder(Path(plan.run_dir)))

    def _copy(self, plan: LaunchPlan) -> tuple[dict[str, NodeSeen], bool, TargetError | None]:
        """Copies all files of a run that no launcher here follows; returns its nodes' states.

        Also whether a launcher elsewhere follows it, and the error of the hosts that failed.
        """
        states: dict[str, NodeSeen] = {}
        errors: list[TargetError] = []

        def copy(node: NodePlan) -> bool:
            try:
                with self._open(plan, node.node_index) as session:
                    there, is_followed = copy_once(session, plan, node.node_index)
            except TargetError as error:
                errors.append(error)
                states[nodes.key_of(node)] = NodeSeen(state="missing", detail=error.what)
                return False
            states.update(there)
            return is_followed

        followed = self._connect(plan).each(copy, plan.nodes)
        return states, any(followed), joined(errors) if errors else None

    def _open(self, plan: LaunchPlan, index: int) -> Session:
        """A session; what was in the way of the last one is raised again for a while."""
        host = HostsSettings.of(plan).hosts[index]
        tried_at, why = _away.get(host.name, (float("-inf"), None))
        if why and time.monotonic() - tried_at < AWAY_RETRY_S:
            raise why
        try:
            return self._connect(plan).open(host.host)
        except TargetError as error:
            _away[host.name] = time.monotonic(), error
            raise

    def find_end(self, run: RunFolder, plan: LaunchPlan) -> Ending | None:
        """As ``Target.find_end``. Between two attempts no node runs, but the run does."""
        _, is_followed, error = self._copy(plan)
        if error:
            raise error
        return None if is_followed else super().find_end(run, plan)

    # -- end --------------------------------------------------------------------------------------

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.stop``. On a silent host the keeper ends the node of a followed run.

        Raises ``TargetError`` for a host that is not reached, unless this launcher follows the run.
        """
        if (plan := self._plan_of(run_id)) is None:
            return
        try:
            self._end(plan, only, grace_s)
        finally:
            if only is None:
                if self._beats is not None:
                    self._beats.set()
                self._connect(plan).each(lambda line: line.close(), self._lines.values())
                self._lines, self._beats = {}, None

    def _plan_of(self, run_id: str) -> LaunchPlan | None:
        run = RunFolder(self._run_root / run_id)
        if run.is_there():
            return run.read_plan()
        # The folder was removed while the run goes on: only this launcher can still end it.
        plan = self._submitted
        return plan if plan is not None and plan.run_id == run_id else None

    def _end(self, plan: LaunchPlan, only: tuple[int, ...] | None, grace_s: float) -> None:
        """Ends ``only`` these nodes, or the run, whose files are then brought here.

        Nothing is removed before all nodes have ended: hosts that share a home share the run's
        folder.
        """
        ssh, hosts = self._connect(plan), HostsSettings.of(plan).hosts
        wanted = [n.node_index for n in plan.nodes if only is None or n.node_index in only]
        index_of = {hosts[index].name: index for index in wanted}
        # The end of the run is tried on each host: one that was silent may be back.
        away = {} if only is None else self._find_silent(index_of)
        # A launcher elsewhere that follows the run would start its nodes again.
        foreign = only is None and not self._lines

        def end(session: Session) -> None:
            index = index_of[session.host.name]
            if only is None and (line := self._lines.get(index)):
                # The line must not copy the same files as ``bring_last``.
                line.close()
            which = None if only is None else index
            nodes.end(session, plan, hosts[index], which, grace_s, tell_launcher=foreign)

        def bring(session: Session) -> None:
            try:
                self.notes += nodes.bring_last(ssh, session, plan, index_of[session.host.name])
            except TargetError as error:
                away[session.host.name] = error

        # A host that does not answer must not delay the end on the others.
        waited_for = [hosts[index].host for name, index in index_of.items() if name not in away]
        with ssh.sessions(waited_for, away=away, first=end) as opened:
            if only is None:
                ssh.each(bring, [session for name, session in opened.items() if name not in away])
        if away and (plan.detached or not self._lines):
            raise TargetError(
                "; ".join(error.what for error in away.values()),
                f"{typed.command('stop', plan.run_id)}, once more",
            )


def _in_a_line(error: TargetError) -> str:
    return "; ".join(filter(None, (error.what, error.hint)))
