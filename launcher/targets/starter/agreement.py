"""How the nodes of one start agree: node 0 writes the plan and their task into the run's folder.

Node 0 writes ``RUN/starts/KEY.json`` when the plan is in place: the task (a ``NodeTask``) with
which every agent is started, or the error that prevented it. ``KEY.stop`` asks the agents of that
start to stop. ``KEY`` names the start.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.agent_settings import NodeTask
from launcher.contract.clock import Clock
from launcher.contract.errors import InputError, LauncherError, TargetError
from launcher.contract.records import read_object
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder, make_folders, write_atomically
from launcher.targets.shared_folder import ask_to_stop, changed_at
from launcher.targets.starter.starters import NodePlace, plain

STARTS_DIR = "starts"
PLAN_LIMIT_S = 300.0
"""How long a node waits for node 0's plan: starters start nodes at about the same time, and a
network file system may take a minute to show a new file."""
STALE_LIMIT_S = 10.0
"""How long a node takes an error in that file for one that an earlier start left there."""
LOOK_S = 0.2
SET_ASIDE = "outcome-{number}.json"


@dataclass(frozen=True, kw_only=True)
class StartFiles:
    """The files of one start of a run."""

    run: RunFolder
    key: str

    @property
    def ready(self) -> Path:
        """The task of all nodes, which is there when node 0's plan is in place, or the error."""
        return self.run.path / STARTS_DIR / f"{self.key}.json"

    @property
    def stop(self) -> Path:
        """The file that asks the agents to stop."""
        return self.run.path / STARTS_DIR / f"{self.key}.stop"

    def begin(self) -> None:
        """Called by node 0 before it plans: removes what an earlier start of the same name left."""
        make_folders((str(self.ready.parent),))
        self.ready.unlink(missing_ok=True)
        self.stop.write_text("")

    def tell(self, plan: LaunchPlan) -> None:
        """Called by node 0 when the plan is in place."""
        assert plan.agent is not None, "these nodes need the agent"
        write_atomically(self.ready, NodeTask(node=plan.nodes[0], settings=plan.agent).to_json())

    def tell_error(self, error: LauncherError) -> None:
        """Called by node 0 with what prevented a plan."""
        record = {"error": {"what": error.what, "hint": error.hint}}
        with contextlib.suppress(OSError):
            self.ready.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.ready, json.dumps(record))

    def wait_for_plan(self, clock: Clock) -> LaunchPlan:
        """Called by all other nodes: waits for node 0's plan.

        Raises ``InputError`` with node 0's error, ``TargetError`` if node 0 writes nothing.
        """
        began = clock.monotonic()
        while True:
            waited_s, reply = clock.monotonic() - began, read_object(self.ready)
            error = reply.get("error")
            if reply and error is None:
                return self.run.read_plan()
            if isinstance(error, dict) and waited_s > STALE_LIMIT_S:
                raise InputError(
                    f"node 0 did not start: {error.get('what')}", error.get("hint", "")
                )
            if waited_s > PLAN_LIMIT_S:
                raise TargetError(
                    f"node 0 has not written {self.ready} within {PLAN_LIMIT_S:g} s",
                    "all nodes must see the folder of the runs (--runs DIR on a shared file "
                    "system); what node 0 printed says more",
                )
            clock.sleep(LOOK_S)


def name_run(job_name: str, place: NodePlace, given: str | None) -> str:
    """The run's id, the same on all nodes. Raises ``InputError`` if it is bad or unknown."""
    if given is not None:
        if plain(given) != given.replace("_", "-"):
            raise InputError(
                f"--run-id {given}: letters, digits, points and dashes make an id",
                f"--run-id {plain(given) or 'NAME-1'}",
            )
        return given
    if not place.job:
        raise InputError(
            f"{place.starter} gives no job id, so the nodes cannot agree on a run id",
            f"name it, new for each run: launcher node --run-id {job_name}-$(date +%s) ...",
        )
    return f"{job_name}-{place.job}"


def find_files(run_root: Path, run_id: str, place: NodePlace) -> StartFiles:
    """The files of this start."""
    run = RunFolder(run_root.absolute() / run_id)
    return StartFiles(run=run, key="-".join(filter(None, (place.job, place.start))) or "0")


def check_same_job(run: RunFolder, job_text: str, place: NodePlace, *, is_named: bool) -> bool:
    """Whether the run was started before and goes on. Raises ``InputError`` for another run's id.

    ``is_named``: a person gave the id.
    """
    if not run.is_there():
        return False
    fix = f"name this one: --run-id {run.run_id}-2 (on all nodes)"
    # The same job of a scheduler starts the run again, as after a requeue.
    if not is_named and not place.scheduler:
        raise InputError(f"{run.path} already exists and belongs to another run", fix)
    try:
        known = (run.path / protocol.JOB_FILE).read_text()
    except OSError:
        known = ""
    if known != job_text:
        raise InputError(
            f"{run.run_id} was started before with another job or other options; see "
            f"{run.path / protocol.JOB_FILE}",
            fix,
        )
    return True


def set_outcome_aside(run: RunFolder) -> None:
    """Renames the outcome of an earlier start, which no longer holds: the run goes on."""
    old = run.path / protocol.OUTCOME_FILE
    if old.exists():
        names = (run.path / SET_ASIDE.format(number=number) for number in itertools.count())
        old.replace(next(path for path in names if not path.exists()))


def last_start(run: RunFolder) -> float:
    """When the run was started last; -inf if never. Outcomes from before do not hold any more."""
    ready = (run.path / STARTS_DIR).glob("*.json")
    return max(map(changed_at, ready), default=float("-inf"))


def request_stop(run: RunFolder) -> None:
    """Asks the agents of all starts to stop."""
    for ready in (run.path / STARTS_DIR).glob("*.json"):
        ask_to_stop(ready.with_suffix(".stop"))
