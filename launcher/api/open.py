"""Decides where a job runs: what was forced, else the best that the machine has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.contract import protocol
from launcher.contract.errors import InputError, SilentTargetError, TargetError
from launcher.follow.target import Target
from launcher.plan.target_facts import TargetFacts

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec
    from launcher.targets.hosts.inventory import Inventory
    from launcher.targets.hosts.ssh import Ssh

KUBERNETES = "kubernetes"
TARGETS = ("docker", "local", KUBERNETES, "hosts")
SHOWN_HOSTS = 8
IMAGE_REASON_DIR = ".image"
"""Where ``make`` leaves why an image could not be built: ``<flavor>.reason``."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A target with its facts, and in one line why it was taken."""

    target: Target
    facts: TargetFacts
    why: str


def open_target(
    name: str,
    run_root: Path,
    inventory: Inventory | None = None,
    context: str | None = None,
    ssh: Ssh | None = None,
) -> Target:
    """The target of that name, imported here: nobody pays for another's library.

    ``inventory`` are the machines of target ``hosts``, ``context`` is the kubeconfig's for target
    ``kubernetes``, where the command line names them; ``ssh`` has connections to the machines.
    """
    if name == "hosts":
        from launcher.targets.hosts.target import HostsTarget

        return HostsTarget(run_root, inventory, ssh=ssh)
    if name == "local":
        from launcher.targets.local.target import LocalTarget

        return LocalTarget(run_root)
    if name == "docker":
        from launcher.targets.docker.target import DockerTarget

        return DockerTarget(run_root)
    if name == KUBERNETES:
        from launcher.targets.kubernetes.target import KubernetesTarget

        return KubernetesTarget(run_root, context=context)
    raise InputError(f"--on {name}: no such target", f"one of: {', '.join(TARGETS)}")


def choose_target(
    job: JobSpec,
    forced: str | None,
    run_root: Path,
    open_: Callable[[str, Path], Target] = open_target,
) -> Choice:
    """Docker where its engine answers and the image is there, else local processes.

    Raises ``TargetError`` where a forced target cannot run the job, or none can.
    """
    if forced is not None:
        target = open_(forced, run_root)
        facts = target.facts(job)
        return Choice(
            target=target, facts=facts, why=f"{describe(facts)} (forced by --on {forced})"
        )
    docker = open_("docker", run_root)
    try:
        facts = docker.facts(job)
        stale = _read_image_reason() if job.image is None else ""
        why = f"{describe(facts)}{f'; the image is an older one: {stale}' if stale else ''}"
        return Choice(target=docker, facts=facts, why=why)
    except SilentTargetError as error:
        raise TargetError(error.what, f"{error.hint}; without it: --on local") from error
    except TargetError as error:
        reason = _read_image_reason() or error.what
    local = open_("local", run_root)
    facts = local.facts(job)
    return Choice(target=local, facts=facts, why=f"{describe(facts)}, because {reason}")


def choose_engine(job: JobSpec, environ: Mapping[str, str]) -> JobSpec:
    """The job as it is, or under plain torchrun where ``LAUNCHER_ENGINE=torchrun`` says so.

    Raises ``InputError`` for any other value but ``agent``, which leaves the choice to the job.
    """
    engine = environ.get(protocol.ENGINE, "")
    if engine not in ("", "agent", "torchrun"):
        raise InputError(
            f"{protocol.ENGINE}={engine} is no engine",
            f"{protocol.ENGINE}=torchrun, or unset {protocol.ENGINE}",
        )
    return job.without_agent() if engine == "torchrun" else job


def describe(facts: TargetFacts) -> str:
    """What was chosen, in words."""
    if facts.target == KUBERNETES:
        return f"Kubernetes, image {facts.image}, {facts.accelerator}"
    where = "local processes" if facts.target == "local" else f"local Docker, image {facts.image}"
    if facts.target == "hosts":
        where = describe_hosts(facts)
    if facts.accelerator == "cuda":
        machines = [node.machine for node in facts.nodes if node.machine] or [facts.machine]
        return f"{where}, {sum(len(each.device_ids or ()) for each in machines)} GPUs, NCCL"
    return f"{where}, no GPU: gloo, {facts.machine.cpu_count} CPU cores"


def describe_hosts(facts: TargetFacts) -> str:
    """The machines, and what was looked at before they were taken."""
    names = [node.machine.name for node in facts.nodes if node.machine]
    more = f" and {len(names) - SHOWN_HOSTS} more" if len(names) > SHOWN_HOSTS else ""
    checked = (
        "ssh, torch, ports, leases, clocks" if facts.image is None else "ssh, Docker, ports, leases"
    )
    pairs = f", {len(names) * (len(names) - 1)} ways between them" if len(names) > 1 else ""
    shared = ", one checkpoint folder" if len(names) > 1 and facts.shares_storage else ""
    return f"hosts {', '.join(names[:SHOWN_HOSTS])}{more} (checked: {checked}{pairs}{shared})"


def _read_image_reason() -> str:
    for path in sorted(Path(IMAGE_REASON_DIR).glob("*.reason")):
        if text := path.read_text(errors="replace").strip():
            return text.splitlines()[0]
    return ""
