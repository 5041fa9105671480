"""Target ``kubernetes``: a job's objects in one namespace of a cluster.

The cluster's controllers start and replace the pods; the launcher submits, watches and reads.
Rendering imports nothing that speaks to a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.code.record import read_kept_code
from launcher.contract import typed
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import Ending
from launcher.contract.errors import InputError
from launcher.follow.target import Door, Driver, Observation, Target, Traits
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import TargetFacts
from launcher.runs.folder import RunFolder
from launcher.targets.agent_files import is_own_image
from launcher.targets.kubernetes.api.cluster import ANSWER_LIMIT_S, Cluster
from launcher.targets.kubernetes.cluster_job import ClusterJob, read_cluster
from launcher.targets.kubernetes.follow import ClusterDriver, bring_output, find_end
from launcher.targets.kubernetes.plan import PodSettings, describe_own_disks, plan_facts
from launcher.targets.kubernetes.render.code import check_size
from launcher.targets.kubernetes.render.manifest import (
    RenderedManifest,
    render_losses,
    render_manifest,
)
from launcher.targets.kubernetes.render.pod import TOKEN_VERBS, Object, render_token

if TYPE_CHECKING:
    from launcher.code.record import PackedCode
    from launcher.contract.reports.look import LookRequest
    from launcher.follow.console import Console
    from launcher.job.spec import JobSpec


class KubernetesTarget(Target):
    """Runs a job as objects of the kind that it asks for."""

    name = "kubernetes"
    traits = Traits(
        goes_on_alone=True,
        own_checkpoints="kubernetes.checkpoint",
        workers_on_consoles=True,
        sends_code=True,
        plans_offline=True,
        held_by="launcher.targets.hosts.held:HeldPodsTarget",
    )

    def __init__(
        self,
        run_root: Path,
        clock: Clock | None = None,
        *,
        context: str | None = None,
        kubeconfig: str | None = None,
    ) -> None:
        """``context`` and ``kubeconfig`` are for new runs; None: those that kubectl would use."""
        super().__init__()
        self._run_root = run_root
        self._context, self._kubeconfig = context, kubeconfig
        self._clock = clock or SystemClock()
        self._cluster: Cluster | None = None
        self._job: ClusterJob | None = None

    def _cluster_of(self, plan: LaunchPlan) -> Cluster:
        """The cluster that the run was submitted to, or else the one for new runs."""
        if self._cluster is None:
            namespace = PodSettings.of(plan).namespace
            new_runs = Cluster(self._context, namespace, self._kubeconfig)
            self._cluster = read_cluster(self._run_root / plan.run_id) or new_runs
        return self._cluster

    def job(self, plan: LaunchPlan) -> ClusterJob:
        """The run's job; a target is asked about one run only."""
        if self._job is None:
            self._job = ClusterJob(self._cluster_of(plan), plan, self._clock)
        return self._job

    # -- before a run ----------------------------------------------------------------------------

    def facts(self, job: JobSpec) -> TargetFacts:
        """As ``Target.facts``: all that a manifest needs is in the job file."""
        if self.code is not None:
            check_size(self.code)
        root, cwd = str(self._run_root.absolute()), str(Path.cwd())
        return plan_facts(job, run_root=root, cwd=cwd, code=self.code)

    def check(self, plan: LaunchPlan) -> None:
        """As ``Target.check``: the cluster must answer; only a pod can check image and volumes."""
        cluster = self._cluster_of(plan)
        cluster.read_version()
        if cluster.skips_verification:
            self.notes.append(
                f"context {cluster.context} skips TLS verification: whoever is on the way to "
                "the cluster can read and change what is sent (insecure-skip-tls-verify)"
            )
        if plan.is_hold:
            from launcher.targets.kubernetes.exec import check_door

            check_door(cluster, "runs in a hold are started in its pods")
            if PodSettings.of(plan).kind == "trainjob":
                what = "kubernetes.kind trainjob: its pods are not held"
                raise InputError(what, "--kind pytorchjob, jobset or job")
        self.notes += render_losses(plan)
        if is_own_image(plan.image or "") and "/" not in (plan.image or ""):
            self.notes.append(
                f"no registry has the image {plan.image}: the cluster's nodes must hold it; else "
                "make push IMAGE=REF, and --image REF"
            )
        if PodSettings.of(plan).checkpoint is None:
            self.notes.append(describe_own_disks(plan))

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> RenderedManifest:
        """The objects of all nodes, whatever ``only`` says: a cluster has no others."""
        return render_manifest(plan, code=self._code_of(plan))

    def _code_of(self, plan: LaunchPlan) -> PackedCode | None:
        """The code that the plan takes along; a run has it in its folder."""
        if plan.code is None or self.code is not None:
            return self.code
        return read_kept_code(Path(plan.run_dir))

    def preview(self, plan: LaunchPlan, made_by: str, *, embed: bool = False) -> str:
        """As ``Target.preview``: the text of a manifest; the plan, not ``embed``, has the agent."""
        self.notes += render_losses(plan)
        return render_manifest(plan, code=self._code_of(plan), made_by=made_by).yaml()

    # -- while it runs ---------------------------------------------------------------------------

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.submit``: dry runs of all objects come before anything is made.

        Raises ``InputError`` if an object of the job's name is there already.
        """
        job, objects = self.job(plan), self.render(plan).objects
        # An interrupt does not wait for an answer; what was made is then taken away.
        self.is_sending = True
        try:
            job.submit((*self._token_of(plan, job.cluster), *objects), self.notes)
        finally:
            self.is_sending = False

    def _token_of(self, plan: LaunchPlan, cluster: Cluster) -> tuple[Object, ...]:
        if all(cluster.may(verb, "secrets") for verb in TOKEN_VERBS):
            return (render_token(plan),)
        self.notes.append(
            f"you may not {' and '.join(TOKEN_VERBS)} secrets in namespace {cluster.namespace}: "
            "whoever reaches the pods may join the run; k8s/base/rbac.yaml grants it, and "
            "k8s/base/network-policy.yaml closes the pods to others"
        )
        return ()

    def observe(self, plan: LaunchPlan) -> Observation:
        job = self.job(plan)
        with job.cluster.answers_within(ANSWER_LIMIT_S):
            return job.observe()

    def as_run(self, plan: LaunchPlan) -> LaunchPlan:
        return self.job(plan).pods.as_run(plan)

    def look_at_workers(
        self, run: RunFolder, plan: LaunchPlan, request: LookRequest, limit_s: float, clock: Clock
    ) -> Mapping[int, str]:
        from launcher.targets.kubernetes.exec import collect_looks

        return collect_looks(self.job(plan), run, plan, request, limit_s)

    def door(self, plan: LaunchPlan, node_index: int) -> Door:
        from launcher.targets.kubernetes.exec import open_door

        return open_door(self.job(plan), plan, node_index)

    def collect(self, plan: LaunchPlan) -> None:
        self.job(plan).pods.collect()

    def scale(self, run: RunFolder, plan: LaunchPlan, nodes: int) -> bool:
        self.job(plan).scale(nodes)
        return True

    def suspension(self, plan: LaunchPlan) -> ClusterJob:
        """As ``Target.suspension``: the job's object stays."""
        return self.job(plan)

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        """As ``Target.stop``; claims, and so checkpoints, are never touched.

        Raises ``TargetError`` with the command to type if the job runs on, and ``InputError``
        for single nodes: the cluster's controllers choose which pods go.
        """
        if only is not None:
            fix = typed.command("scale", run_id, "N")
            raise InputError("single nodes of a cluster are not stopped", fix)
        job = self.job(RunFolder(self._run_root / run_id).read_plan())
        job.end(self.notes, keep=False)
        job.wait_gone(grace_s)

    # -- following -------------------------------------------------------------------------------

    def drive(
        self,
        run: RunFolder,
        plan: LaunchPlan,
        console: Console,
        clock: Clock,
        show: Callable[[], None],
    ) -> Driver:
        return ClusterDriver(run, plan, self.job(plan), console, clock)

    def find_end(self, run: RunFolder, plan: LaunchPlan) -> Ending | None:
        return find_end(run, self.job(plan))

    def bring_output(self, run: RunFolder, plan: LaunchPlan, *, follow: bool) -> Iterator[None]:
        return bring_output(run, plan, self, self._clock, follow=follow)
