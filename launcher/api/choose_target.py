"""Decides where a job runs: where it is forced to, else in processes or containers of this machine;
and whether under plain torchrun."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.contract import protocol
from launcher.contract.errors import InputError, SilentTargetError, TargetError, closest
from launcher.targets.room import Room, load

if TYPE_CHECKING:
    from launcher.follow.target import Target
    from launcher.job.spec import JobSpec
    from launcher.plan.launch_plan import LaunchPlan
    from launcher.plan.target_facts import TargetFacts
    from launcher.targets.starter.node import StartedNode

ROOMS = {
    "docker": "launcher.targets.docker.target:DockerTarget",
    "local": "launcher.targets.local.target:LocalTarget",
    "kubernetes": "launcher.targets.kubernetes.room:KubernetesRoom",
    "hosts": "launcher.targets.hosts.room:HostsRoom",
    "slurm": "launcher.targets.slurm.room:SlurmRoom",
    "starter": "launcher.targets.starter.room:StarterRoom",
}
"""The room of each target, as ``MODULE:CLASS``; or the target's class, if it needs no ``Room``."""
CONTAINERS, PROCESSES = "docker", "local"
"""Where a job that names no target may run."""


class Choice(NamedTuple):
    """A target with its facts, and in one line why it was taken."""

    # No dataclass: importing those takes 6 ms, for which every command would wait.
    target: Target
    facts: TargetFacts
    why: str


def room_of(name: str) -> Room:
    """The room of the target of that name. Raises ``InputError`` if there is none."""
    if name not in ROOMS:
        close = closest(name, targets_of_jobs())
        fix = f"did you mean --on {close}?" if close else f"one of: {', '.join(targets_of_jobs())}"
        raise InputError(f"--on {name}: no such target", fix)
    named = ROOMS[name]
    if named.endswith("Room"):
        room: Room = load(named)()
        return room
    return Room(name, named)


def rooms() -> Iterator[Room]:
    """The rooms of all targets."""
    return map(room_of, ROOMS)


def targets_of_jobs() -> list[str]:
    """The targets that ``--on`` of a job may name."""
    # Commands of their own start the runs of ``starter``.
    return [name for name in ROOMS if name != "starter"]


def name_here(
    environ: Mapping[str, str], note: Callable[[str], None] = lambda line: None
) -> str | None:
    """The target whose nodes this process was given, by its environment; None for most processes.

    Raises ``InputError`` if jobs must be started in another way there.
    """
    # A worker inherits the variables that its run was started with: ignore them for its own jobs.
    if protocol.RUN_ID in environ:
        return None
    return next((room.name for room in rooms() if room.is_here(environ, note)), None)


def started_node(
    job: JobSpec, run_root: Path, environ: Mapping[str, str], run_id: str | None = None
) -> StartedNode:
    """This process as one of the nodes that somebody else starts. Raises ``InputError``."""
    from launcher.targets.starter.node import StartedNode

    return StartedNode(job, run_root, environ, run_id=run_id)


def open_target(name: str, run_root: Path) -> Target:
    """The target of that name, imported here, as each target's library takes time to import."""
    return room_of(name).open(run_root)


def target_of(plan: LaunchPlan, run_root: Path) -> Target:
    """The target of a run; in a hold, that of runs in its nodes."""
    target = open_target(plan.target, run_root)
    if not plan.hold:
        return target
    from launcher.targets.held.hold import in_hold

    return in_hold(run_root / plan.hold, target)


def choose_target(job: JobSpec, run_root: Path, forced: Target | None = None) -> Choice:
    """The forced target; else the first of containers and processes that can run the job.

    Containers come first if the job names what only they have; else processes, where torchrun would
    start them, if that Python has torch. Raises ``TargetError`` if the forced target cannot run the
    job, or none can.
    """
    if forced is not None:
        facts = forced.facts(job)
        return Choice(target=forced, facts=facts, why=facts.describe())
    first, second = PROCESSES, CONTAINERS
    if job.names_containers:
        first, second = second, first
    target, because = open_target(first, run_root), ""
    try:
        facts = target.facts(job)
    except TargetError as error:
        hint = "; ".join(filter(None, (error.hint, f"without it: --on {second}")))
        if job.image or isinstance(error, SilentTargetError):
            raise TargetError(error.what, hint) from error
        target, because = open_target(second, run_root), f", because {error.what}"
        try:
            facts = target.facts(job)
        except TargetError as other:
            raise TargetError(f"{error.what}; {other.what}", error.hint) from error
    return Choice(target=target, facts=facts, why=f"{facts.describe()}{because}")


def choose_engine(job: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """The job as it is, or under plain torchrun if ``LAUNCHER_ENGINE=torchrun`` is set.

    Raises ``InputError`` for any other value but ``agent``, which leaves the choice to the job.
    """
    engine = environ.get(protocol.ENGINE, "")
    if engine not in ("", "agent", "torchrun"):
        raise InputError(
            f"{protocol.ENGINE}={engine} is no engine",
            f"{protocol.ENGINE}=torchrun, or unset {protocol.ENGINE}",
        )
    return job.without_agent() if engine == "torchrun" else job
