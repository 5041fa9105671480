"""Target ``hosts``: machines reached over SSH, one node on each, without a server or a daemon.

On a host a small keeper starts each node and watches its lease; a line to each host brings what
the run writes and renews the lease. Everything is asked of all hosts at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.errors import ExitCode, TargetError
from launcher.contract.node_plan import NodePlan
from launcher.contract.reasons import NodeState
from launcher.follow.requests import render_scale
from launcher.follow.target import LiveRun, NodeObservation, Observation, Target
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import TargetFacts
from launcher.runs.folder import RunFolder, list_runs
from launcher.targets.code_archive import Code, read_code
from launcher.targets.docker_options import plan_containers
from launcher.targets.hosts.connection import (
    LEASE_TTL_S,
    MISSING,
    HostLine,
    LineRenewer,
    copy_once,
)
from launcher.targets.hosts.images import Image, find_label, provide_image, read_image
from launcher.targets.hosts.inventory import Inventory, read_inventory_of
from launcher.targets.hosts.late_start import BACK_LIMIT_S, LateStarts
from launcher.targets.hosts.nodes import (
    ask_on,
    by_host,
    end_on,
    indices_of,
    key_of,
    launch,
    prepare,
    remove_on,
    take,
    take_back,
)
from launcher.targets.hosts.plan import CODE_DIR, TARGET, comes_back, plan_facts, run_dir_on
from launcher.targets.hosts.program.messages import NodeSeen
from launcher.targets.hosts.render import HostNode, HostsArtifact, render_hosts
from launcher.targets.hosts.settings import HostFacts, HostsSettings
from launcher.targets.hosts.ssh import RefusedByHostError, Session, Ssh
from launcher.targets.hosts.survey import Survey, describe_hosts
from launcher.targets.preflight import check_in_code, read_secrets

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

LOST_AFTER_S = 12.0
"""Silence after which a host's nodes count as lost: later than the lease that ends them there."""
FIRST_WORD_LIMIT_S = 20.0


class HostsTarget(Target):
    """Runs each node on a machine of an inventory."""

    name = TARGET

    def __init__(
        self,
        run_root: Path,
        inventory: Inventory | None = None,
        code: Code | None = None,
        ssh: Ssh | None = None,
    ) -> None:
        """``code`` is sent in place of the files of the current folder."""
        super().__init__()
        self._run_root, self._inventory, self._ssh = run_root, inventory, ssh
        self._given_code = self._code = code
        self._image: Image | None = None
        self._submitted: LaunchPlan | None = None
        self._lines: dict[str, HostLine] = {}
        self._pulse: LineRenewer | None = None
        self._late = LateStarts()
        self._refused: dict[int, str] = {}
        """Nodes that their host, though it is reached, could not start, and why."""

    # -- before a run -----------------------------------------------------------------------------

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``. Raises ``InputError`` where no hosts are named."""
        if self._inventory is None:
            self._inventory = read_inventory_of(job)
        survey = Survey(self._connect(), self._inventory, job)
        bare = job.hosts.runtime == "python"
        with ThreadPoolExecutor(max_workers=1) as reader:
            packed = reader.submit(read_code, Path.cwd()) if bare and not self._given_code else None
            hosts = survey.read()
            self._code = packed.result() if packed else self._given_code
        image = self._image = None if bare else read_image(hosts[0].image or "")
        own = HostsSettings(
            hosts=hosts,
            code=self._code.hash if self._code else None,
            ssh_config=self._inventory.ssh_config,
            containers=plan_containers(job, None),
        )
        return plan_facts(
            job,
            own,
            image=image.name if image else None,
            torch_version=find_label(image, hosts, protocol.LABEL_TORCH)
            if image
            else hosts[0].torch_version,
            port=survey.port,
            run_root=str(self._run_root.absolute()),
            cwd=str(Path.cwd()),
            inner=self._code.inner if self._code else "",
            terminal=sys.stderr.isatty(),
        )

    def _connect(self) -> Ssh:
        if self._ssh is None:
            self._ssh = Ssh(self._inventory or Inventory(hosts=()))
        return self._ssh

    def _connect_as(self, plan: LaunchPlan) -> Ssh:
        if self._inventory is None:
            own = HostsSettings.of(plan)
            hosts = tuple(host.host for host in own.hosts)
            self._inventory = Inventory(hosts=hosts, ssh_config=own.ssh_config)
        return self._connect()

    def describe_place(self, facts: TargetFacts) -> str:
        return describe_hosts(facts)

    def check(self, plan: LaunchPlan) -> None:
        read_secrets(plan.nodes[0].secrets, os.environ)
        host = HostsSettings.of(plan).hosts[0]
        check_in_code(plan.nodes[0], f"{run_dir_on(host, plan.run_id)}/{CODE_DIR}", self._code)

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> HostsArtifact:
        return render_hosts(plan, only)

    # -- start ------------------------------------------------------------------------------------

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.submit``: leases first, then everything in place, then all are started."""
        artifact = self.render(plan, only)
        secrets = read_secrets(plan.nodes[0].secrets, os.environ)
        self._submitted = plan
        for node in artifact.nodes:
            self._refused.pop(node.node.node_index, None)
        try:
            self._start(plan, artifact, secrets, late=False)
        except TargetError as error:
            if only is None:
                with contextlib.suppress(TargetError):
                    self.stop(plan.run_id, 0)
                raise
            if not self._is_refused(artifact, error):
                # A host that was lost may be back in a minute: its node is started then.
                self._start_later(plan, artifact, secrets)

    def _is_refused(self, artifact: HostsArtifact, error: TargetError) -> bool:
        """Notes what a host said that is there and cannot do it: the run's own limit counts."""
        if not isinstance(error, RefusedByHostError):
            return False
        self._refused |= {n.node.node_index: f"{error.what}; {error.hint}" for n in artifact.nodes}
        return True

    def _start(
        self, plan: LaunchPlan, artifact: HostsArtifact, secrets: dict[str, str], *, late: bool
    ) -> None:
        ssh = self._connect()
        with ssh.sessions(node.host.host for node in artifact.nodes) as sessions:

            def each(work: Callable[[HostNode, Session], object]) -> None:
                ssh.each(lambda node: work(node, sessions[node.host.host.name]), artifact.nodes)

            # Leases before anything travels: it may take minutes, and the lines renew them.
            each(lambda node, session: take(plan, node, session))
            self._open_lines(plan)
            each(lambda node, session: prepare(plan, node, artifact.agent, self._code, session))
            if plan.image is not None:
                image = self._image or read_image(plan.image)
                each(lambda node, session: provide_image(image, session))
            with self._late.starting(indices_of(artifact)) as is_wanted:
                # No rendezvous clock runs before every host is ready.
                if is_wanted or not late:
                    each(lambda node, session: self._launch(plan, node, secrets, session))
                else:
                    each(lambda node, session: take_back(plan, node, session))

    def _launch(
        self, plan: LaunchPlan, node: HostNode, secrets: dict[str, str], session: Session
    ) -> None:
        launch(plan, node, secrets, session)
        self._lines[node.host.host.name].started(key_of(node.node))

    def _start_later(
        self, plan: LaunchPlan, artifact: HostsArtifact, secrets: dict[str, str]
    ) -> None:
        needed = plan.nodes[0].min_nodes
        self._late.add(
            indices_of(artifact),
            lambda: self._start(plan, artifact, secrets, late=True),
            may_give_up=lambda waiting: len(plan.nodes) - len(waiting) < needed,
            is_final=lambda error: self._is_refused(artifact, error),
        )

    # -- while it runs ----------------------------------------------------------------------------

    def bring_output(self, run: RunFolder, plan: LaunchPlan, *, follow: bool) -> Iterator[None]:
        if not follow or not self._lives(plan):
            return
        self._open_lines(plan, follows=False)
        for line in self._lines.values():
            line.has_told.wait(FIRST_WORD_LIMIT_S)
        while run.read_outcome() is None and self._lives(plan):
            yield

    def _lives(self, plan: LaunchPlan) -> bool:
        return any(node.is_alive for node in self.observe(plan).nodes)

    def scale(self, run: RunFolder, plan: LaunchPlan, nodes: int) -> bool:
        # By the launcher that follows the run, on whatever machine.
        host, _ = next(iter(by_host(plan).values()))
        with self._connect_as(plan).open(host.host) as session:
            ask_on(session, plan, host, protocol.SCALE_REQUEST, render_scale(nodes))
        return True

    def _open_lines(self, plan: LaunchPlan, *, follows: bool = True) -> None:
        ssh, run_dir = self._connect_as(plan), Path(plan.run_dir)
        ttl_s = LEASE_TTL_S if follows else 0.0
        for host, nodes in by_host(plan).values():
            if host.host.name not in self._lines:
                line = HostLine(ssh, plan.run_id, run_dir, host, nodes, ttl_s, follows=follows)
                self._lines[host.host.name] = line
                line.open()
        if self._pulse is None:
            self._pulse = LineRenewer(lambda: tuple(self._lines.values()))
            self._pulse.open()

    def observe(self, plan: LaunchPlan) -> Observation:
        states = {} if self._lines else self._ask(plan)[0]
        # Its own engine may start it again when the host is back: the others go on meanwhile.
        away = "pending" if comes_back(plan) else "missing"
        nodes = tuple(
            self._observe(HostsSettings.of(plan).hosts[node.node_index], node, states, away)
            for node in plan.nodes
        )
        return Observation(run_id=plan.run_id, nodes=nodes)

    def _observe(
        self, host: HostFacts, node: NodePlan, states: Mapping[str, NodeSeen], away: str
    ) -> NodeObservation:
        line = self._lines.get(host.host.name)
        found = line.state(key_of(node)) if line else states.get(key_of(node), MISSING)
        if self._late.waits(node.node_index):
            found = NodeSeen(state="pending", detail=found.detail)
        elif self._late.is_lost(node.node_index):
            detail = f"{host.host.name} was not reached for {BACK_LIMIT_S:.0f} s"
            code = int(ExitCode.TARGET_UNREACHABLE)
            found = NodeSeen(state="exited", exit_code=code, detail=detail)
        elif node.node_index in self._refused:
            found = NodeSeen(state="missing", detail=self._refused[node.node_index])
        elif line and line.silent_s() > LOST_AFTER_S and found.state == "running":
            found = NodeSeen(state=away, detail=f"{host.host.name} does not answer")
        return NodeObservation(
            node_index=node.node_index,
            incarnation=node.incarnation,
            state=NodeState(found.state),
            exit_code=found.exit_code,
            out_of_memory=found.out_of_memory,
            detail=found.detail,
        )

    def _ask(self, plan: LaunchPlan) -> tuple[Mapping[str, NodeSeen], bool]:
        """States of all nodes, and all their files, for a run that no launcher here follows.

        Also whether a launcher elsewhere does.
        """
        ssh = self._connect_as(plan)
        copied = ssh.each(lambda item: self._copy(plan, *item), by_host(plan).values())
        found = {node: state for states, _ in copied for node, state in states.items()}
        return found, any(followed for _, followed in copied)

    def _copy(
        self, plan: LaunchPlan, host: HostFacts, nodes: list[int]
    ) -> tuple[Mapping[str, NodeSeen], bool]:
        with self._connect_as(plan).open(host.host) as session:
            return copy_once(session, host, nodes, plan.run_id, Path(plan.run_dir))

    def collect(self, plan: LaunchPlan) -> None:
        """As ``Target.collect``; a host that is not reached keeps what it has."""

        def copy(item: tuple[HostFacts, list[int]]) -> None:
            if self._answers(item[0]):
                with contextlib.suppress(TargetError):
                    self._copy(plan, *item)

        self._connect_as(plan).each(copy, by_host(plan).values())

    def _answers(self, host: HostFacts) -> bool:
        """False for a host known to be silent: do not wait for it again."""
        line = self._lines.get(host.host.name)
        return line is None or line.silent_s() < LOST_AFTER_S / 2

    # -- end --------------------------------------------------------------------------------------

    def stop(self, run_id: str, grace_s: float) -> None:
        """As ``Target.stop``. What a followed run leaves on a silent host ends by its lease.

        Raises ``TargetError`` for a host that is not reached, unless this launcher follows the run.
        """
        if (plan := self._plan_of(run_id)) is not None:
            self._late.drop()
            try:
                self._end(plan, None, grace_s, remove=True)
            finally:
                self._close_lines()

    def stop_nodes(self, run_id: str, only: tuple[int, ...], grace_s: float) -> None:
        self._late.drop(set(only))
        if (plan := self._plan_of(run_id)) is not None:
            self._end(plan, only, grace_s, remove=False)

    def _plan_of(self, run_id: str) -> LaunchPlan | None:
        run = RunFolder(self._run_root / run_id)
        if run.is_there():
            return run.read_plan()
        # The folder was removed while its run goes on, which can then only be ended from here.
        own = self._submitted
        return own if own is not None and own.run_id == run_id else None

    def _end(
        self, plan: LaunchPlan, only: tuple[int, ...] | None, grace_s: float, *, remove: bool
    ) -> None:
        ssh = self._connect_as(plan)
        unreached: list[str] = []

        def end(item: tuple[HostFacts, list[int]]) -> None:
            host, indices = item
            chosen = [i for i in indices if only is None or i in only]
            if not chosen:
                return
            try:
                if not self._answers(host):
                    raise TargetError(f"{host.host.name}: it does not answer")
                with (remove and self._free(host)) or ssh.open(host.host) as session:
                    nodes = None if only is None else chosen
                    # One elsewhere that follows the run would only start its nodes anew.
                    foreign = remove and not self._lines
                    end_on(session, plan, host, nodes, grace_s, tell_launcher=foreign)
                    if remove:
                        copy_once(session, host, indices, plan.run_id, Path(plan.run_dir))
                        self.notes += remove_on(session, plan, host)
            except TargetError as error:
                unreached.append(error.what)

        ssh.each(end, by_host(plan).values())
        if unreached and (plan.detached or not self._lines):
            raise TargetError("; ".join(unreached), f"launcher stop {plan.run_id}, once more")

    def _free(self, host: HostFacts) -> Session | None:
        return line.free() if (line := self._lines.get(host.host.name)) else None

    def _close_lines(self) -> None:
        if self._pulse is not None:
            self._pulse.close()
        self._connect().each(lambda line: line.close(), self._lines.values())
        self._lines, self._pulse = {}, None

    def live_runs(self) -> tuple[LiveRun, ...]:
        """Runs of this machine's run folders; none while one is followed: leases end all others."""
        if self._lines:
            return ()
        found = []
        for run in list_runs(self._run_root):
            plan = self._plan_of(run.run_id)
            if plan is None or plan.target != self.name or run.read_outcome() is not None:
                continue
            try:
                states, followed = self._ask(plan)
            except TargetError:
                continue  # its own commands tell; a host that is away hides no other run
            # Between two attempts no node runs, but the run does.
            running = max(sum(s.state == "running" for s in states.values()), int(followed))
            found.append(LiveRun(run_id=plan.run_id, run_dir=plan.run_dir, running_nodes=running))
        return tuple(found)
