"""The pods of one run: watched from the first question on, with what they write and leave."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.follow.target import NodeObservation
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from launcher.targets.kubernetes.api import ApiError, Cluster, Object
from launcher.targets.kubernetes.endings import PodEndings
from launcher.targets.kubernetes.output import Incarnations, PodOutput, observe_node
from launcher.targets.kubernetes.pod_states import PodView, parse_pod
from launcher.targets.kubernetes.render_pod import pods_of
from launcher.targets.kubernetes.watch import PodWatch

LOG_LIMIT_S = 15.0
"""How long the last lines of ended pods may take."""
ENDINGS_LIMIT_S = 2.0
"""How long the watch may take to tell how pods ended that a list no longer has."""


class RunPods:
    """What a cluster holds of one run's pods, and what of it is in the run folder.

    Nothing is watched, and no log is read, before a method needs it. Every method may raise
    ``TargetError``.
    """

    def __init__(self, cluster: Cluster, plan: LaunchPlan, clock: Clock) -> None:
        self._cluster, self._plan, self._clock = cluster, plan, clock
        self._run = RunFolder(Path(plan.run_dir))
        self._masters = int(pods_of(plan).has_master)
        self._incarnations = Incarnations(self._run)
        self._endings = PodEndings(self._run, self._incarnations, clock)
        self._watch: PodWatch | None = None
        self._output: PodOutput | None = None

    @property
    def watch(self) -> PodWatch:
        """The watch, which is open from the first call on."""
        if self._watch is None:
            self._watch = PodWatch(self._cluster, selector_of(self._plan.run_id), self._masters)
            self._watch.start()
        return self._watch

    @property
    def _written(self) -> PodOutput:
        if self._output is None:
            find, hear = self.watch.find, self._endings.hear
            self._output = PodOutput(self._cluster, self._run, self._incarnations, find, hear)
        return self._output

    def read(self) -> tuple[PodView, ...]:
        """The pods as they are now, oldest first."""
        if self._watch is not None:
            return self._watch.refresh()
        found = self._cluster.list_objects("v1", "Pod", selector_of(self._plan.run_id))
        views = (parse_pod(pod, self._masters) for pod in found["items"])
        # Servers list by name.
        return tuple(sorted(views, key=lambda pod: (pod.created, pod.name)))

    def read_raw(self) -> tuple[list[Object], list[Object]]:
        """The pods, and the namespace's events if this user may list them, as they are sent."""
        selector = selector_of(self._plan.run_id)
        pods = self._cluster.list_objects("v1", "Pod", selector)["items"]
        with contextlib.suppress(ApiError):
            return pods, self._cluster.list_objects("v1", "Event", "")["items"]
        return pods, []

    def observe(self) -> list[NodeObservation]:
        """Each node by its newest pod."""
        pods = self.read()
        return [observe_node(n.node_index, pods, self._incarnations) for n in self._plan.nodes]

    def number_of(self, pod: PodView) -> int:
        """Which incarnation of its node a pod's container is."""
        assert pod.node_index is not None, "asked for nodes alone"
        return self._incarnations.number(pod.node_index, pod.uid, pod.restarts)

    def as_run(self, plan: LaunchPlan) -> LaunchPlan:
        """The plan with the incarnations that its nodes have come to."""
        newest = self._incarnations.newest
        nodes = tuple(replace(node, incarnation=newest(node.node_index)) for node in plan.nodes)
        return replace(plan, nodes=nodes)

    # -- output ----------------------------------------------------------------------------------

    def follow_logs(self) -> None:
        """Starts to follow every container that was started since the last call, and saves what
        those that ended have left."""
        self._save()
        self._written.follow(self.watch.pods())

    def read_logs(self) -> None:
        """Brings what all containers have written by now, within ``LOG_LIMIT_S``, and outcomes.

        Raises ``ApiError`` where this user may not read logs.
        """
        pods = self.watch.refresh()
        self._save()
        self._written.read(pods, LOG_LIMIT_S, self._clock)
        if (refusal := self._written.refusal) is not None:
            raise refusal

    def collect(self) -> None:
        """Brings the logs' last lines, within ``LOG_LIMIT_S``, and outcomes."""
        self.watch.refresh()
        self.watch.wait_endings(ENDINGS_LIMIT_S)
        self.follow_logs()
        self._written.finish(LOG_LIMIT_S, self._clock)

    def close(self) -> None:
        """Brings the last words of pods that have ended, and watches them no longer."""
        if self._output is not None:
            self._output.finish(LOG_LIMIT_S, self._clock)
        if self._watch is not None:
            self._watch.wait_endings(ENDINGS_LIMIT_S)
            self._save()
            self._watch.stop()

    def _save(self) -> None:
        """By the one process that writes the output: what ended pods leave."""
        if self._written.take():
            self._endings.save(self.watch.seen(), self.watch.pods())

    def writes_output(self) -> bool:
        """Whether this process is the one that brings the pods' output, from now on."""
        return self._written.take()

    @property
    def refusal(self) -> ApiError | None:
        """Why this user gets no logs; None while the server gives them."""
        return self._written.refusal

    def find_losses(self) -> tuple[str, ...]:
        """A line for each container whose log the cluster no longer has."""
        return self._written.find_losses()


def selector_of(run_id: str) -> str:
    """What selects a run's objects."""
    return f"{protocol.LABEL_RUN_ID}={run_id}"
