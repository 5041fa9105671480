"""Target ``starter``: nodes that somebody else starts; what is known of them by the files that they
leave, such as which have ended.

No launcher follows such a run. What is known of it is what its agents write into its folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.causes import NodeState
from launcher.contract.clock import Clock, SystemClock
from launcher.contract.ending import Ending
from launcher.contract.errors import InputError
from launcher.contract.waits import wait_until
from launcher.follow.endings import Part, decide_parts, judge_left
from launcher.follow.target import Observation, Traits
from launcher.plan.launch_plan import LaunchPlan
from launcher.plan.target_facts import TargetFacts
from launcher.runs.folder import RunFolder, check_folder
from launcher.targets.preflight import check_here, read_secrets
from launcher.targets.processes import ProcessArtifact, read_facts, render_processes
from launcher.targets.shared_folder import (
    PLACEHOLDER_PORT,
    SharedFolderTarget,
    ask_to_stop,
    changed_at,
    find_silent,
    observe_folder,
)
from launcher.targets.starter.plan import TARGET, StarterSettings, plan_facts

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec
    from launcher.targets.starter.starters import NodePlace

STARTS_DIR = "starts"
"""In the run folder: what the nodes of each start tell each other (``node``)."""
STOP_MARGIN_S = 15.0
"""What agents may need beyond the grace: to see the request, and to write how they ended."""
LOOK_S = 0.5
SILENT_S = 120.0
"""Where others have ended, a node whose last sign of life is older than this has ended too. Agents
show one every ``ALIVE_S``, and clients of network file systems may see it up to a minute late."""
STARTED_BY = "srun --ntasks-per-node=1 launcher node train.py (or mpirun -N 1, ...)"


class StarterTarget(SharedFolderTarget):
    """Runs that ``launcher node`` began. ``place`` is set if this process is one of the nodes."""

    name = TARGET
    traits = Traits(goes_on_alone=True, takes_shell=True)
    look_s = 2.0

    def __init__(
        self, run_root: Path, place: NodePlace | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(run_root)
        self.place = place
        self._clock = clock or SystemClock()

    def facts(self, job: JobSpec) -> TargetFacts:
        if self.place is None:
            raise InputError(f"--on {TARGET}: somebody else starts its nodes", STARTED_BY)
        # MASTER_ADDR and the like are the starter's own: nothing to tell.
        here = read_facts(job, TARGET, self._run_root, (PLACEHOLDER_PORT,))
        return plan_facts(job, here, self.place)

    def check(self, plan: LaunchPlan) -> None:
        read_secrets(plan.nodes[0].secrets, os.environ)
        check_folder(Path(plan.checkpoint_dir))
        check_here(plan.nodes[0])

    def render(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> ProcessArtifact:
        """Renders node 0 unless ``only`` says others: each node is rendered on its own machine."""
        return render_processes(plan, only or (0,))

    def submit(self, plan: LaunchPlan, only: tuple[int, ...] | None = None) -> None:
        raise InputError(f"{plan.run_id}: somebody else starts its nodes", STARTED_BY)

    def find_end(self, run: RunFolder, plan: LaunchPlan) -> Ending | None:
        observation = self.observe(plan)
        if any(node.is_alive for node in observation.nodes):
            return None
        nodes = ((node.node_index, node.incarnation) for node in observation.nodes)
        left = [outcome for node in nodes if (outcome := run.read_node_outcome(*node))]
        ended = [outcome for outcome in left if outcome.detail != protocol.OTHERS_GO_ON]
        parts = [Part(words=outcome.detail, outcome=outcome) for outcome in ended]
        if not ended:
            return judge_left(plan, observation)
        return decide_parts(ended, parts, still_running=0, min_nodes=plan.min_nodes)

    # -- what the run's folder tells ----------------------------------------------------------

    def observe(self, plan: LaunchPlan) -> Observation:
        run = RunFolder(Path(plan.run_dir))
        began = max(map(changed_at, _starts(run)), default=float("-inf"))
        folders = (run.node_dir(*node) for node in dict(run.incarnations()).items())
        # Outcomes of earlier starts do not count.
        has_ended = any(changed_at(path / protocol.OUTCOME_FILE) > began for path in folders)
        silent = find_silent(run, SILENT_S) if has_ended else {}
        gone, runs = (NodeState.EXITED, "it left no outcome"), (NodeState.RUNNING, "")
        return observe_folder(run, plan, lambda index: gone if index in silent else runs, began)

    def stop(self, run_id: str, grace_s: float, only: tuple[int, ...] | None = None) -> None:
        if only is not None:
            raise InputError(f"{run_id}: somebody else starts and ends its nodes", STARTED_BY)
        run = RunFolder(self._run_root / run_id)
        if not run.is_there():
            return
        plan = run.read_plan()

        def find_living() -> list[str]:
            return [f"node {n.node_index}" for n in self.observe(plan).nodes if n.is_alive]

        if not find_living():
            return
        for ready in _starts(run):
            ask_to_stop(ready.with_suffix(".stop"))
        wait_until(lambda: not find_living(), grace_s + STOP_MARGIN_S, LOOK_S, self._clock)
        if left := find_living():
            settings = StarterSettings.of(plan)
            job = f" (job {settings.scheduler})" if settings.scheduler else ""
            ends = f"what still runs ends with {settings.starter}{job}"
            self.notes.append(f"no end reported by {', '.join(left)}; {ends}")


def _starts(run: RunFolder) -> list[Path]:
    """The files that node 0 wrote at each start."""
    return [*(run.path / STARTS_DIR).glob("*.json")]
