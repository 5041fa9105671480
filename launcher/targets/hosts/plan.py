"""Plans a run on hosts: which of them, by which addresses, with whose paths. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from launcher.contract.agent_settings import ROSTER
from launcher.contract.errors import KeyInputError, TargetError
from launcher.contract.node_plan import Elastic, NodePlan
from launcher.plan.agent_task import plan_agent, plan_stores
from launcher.plan.devices import NodeDevices, check_no_gpus_wanted
from launcher.plan.hosts import Host, HostFacts
from launcher.plan.launch_plan import LaunchPlan, SharedByNodes, plan_run
from launcher.plan.target_facts import TargetFacts

if TYPE_CHECKING:
    from launcher.job.spec import JobSpec

RUNS_DIR = "runs"
CHECKPOINTS_DIR = "checkpoints"
CODE_DIR = "code"
CLOCK_LIMIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Address:
    """One address of a host; ``speed`` of its interface in Mbit/s, 0 where it is not known."""

    interface: str
    address: str
    speed: int = 0


def decide_addresses(
    hosts: Sequence[Host],
    candidates: Sequence[Sequence[Address]],
    reached: Collection[tuple[int, int, str]],
) -> list[Address]:
    """The address of each host that all others reach: the inventory's, else the fastest one.

    ``reached`` holds (from, to, address), hosts by their place. Raises ``TargetError`` naming a
    pair that does not meet.
    """
    found = set(reached)
    chosen = []
    for place, host in enumerate(hosts):
        wanted = [a for a in candidates[place] if is_wanted(host, a)]
        others = [other for other in range(len(hosts)) if other != place]
        good = [a for a in wanted if all((o, place, a.address) in found for o in others)]
        if not good:
            raise _unreached(hosts, place, wanted, found)
        chosen.append(max(good, key=lambda a: (a.speed, ":" not in a.address)))
    return chosen


def is_wanted(host: Host, address: Address) -> bool:
    """Whether the inventory leaves this address of the host to be chosen."""
    return host.address in (None, address.address) and host.interface in (None, address.interface)


def _unreached(
    hosts: Sequence[Host],
    place: int,
    wanted: Sequence[Address],
    found: Collection[tuple[int, int, str]],
) -> TargetError:
    name = hosts[place].name
    if not wanted:
        asked = hosts[place].interface or hosts[place].address or "address of another network"
        fix = (
            f"correct interface: or address: of {name} in hosts.yaml: ssh {name} ip -brief address"
        )
        return TargetError(f"{name}: found no {asked}", fix)
    listed = ", ".join(f"{a.address} ({a.interface})" for a in wanted)
    missing = [
        other.name
        for i, other in enumerate(hosts)
        if i != place and not any((i, place, a.address) in found for a in wanted)
    ] or [other.name for i, other in enumerate(hosts) if i != place]
    return TargetError(
        f"{name}: {', '.join(missing[:4])} cannot reach it at {listed}",
        "open its TCP ports to the other hosts (docs/hosts.md), or set interface: for it",
    )


def decide_hosts(
    found: Sequence[HostFacts], busy: Mapping[str, str], job: JobSpec
) -> tuple[HostFacts, ...]:
    """The hosts of the nodes, in the inventory's order: the first that are free.

    ``busy`` says of a host that cannot be used why. Raises ``TargetError`` where too few are left;
    an elastic job takes what there is, at least its MIN.
    """
    free = [facts for facts in found if facts.host.name not in busy]
    if len(free) < job.nnodes.min:
        reasons = "".join(f"\n  {name}: {why}" for name, why in busy.items())
        raise TargetError(
            f"nnodes is {job.nnodes}, but {len(free)} of {len(found)} hosts can be used{reasons}",
            "name more hosts, lower --nnodes, or wait: launcher hosts shows who holds them",
        )
    return tuple(free[: job.nnodes.max])


def check_clocks(hosts: Sequence[HostFacts], backend: str) -> None:
    """Raises ``TargetError`` where clocks differ by more than c10d bears, if that is the backend.

    Its keep-alives are stamped with the time of day: beyond the limit the world splits in silence.
    """
    slow = min(hosts, key=lambda facts: facts.clock_offset_s)
    fast = max(hosts, key=lambda facts: facts.clock_offset_s)
    apart_s = fast.clock_offset_s - slow.clock_offset_s
    if backend == "c10d" and apart_s > CLOCK_LIMIT_S:
        raise TargetError(
            f"{fast.host.name}: its clock is {apart_s:.0f} s ahead of {slow.host.name}'s, and the "
            f"rendezvous c10d allows {CLOCK_LIMIT_S:g} s",
            "timedatectl set-ntp true on both, or --set rdzv.backend=roster, which needs no clocks",
        )


def check_versions(hosts: Sequence[HostFacts]) -> None:
    """Raises ``TargetError`` where hosts have torch in more than one version."""
    versions = [facts.torch_version for facts in hosts]
    usual = max(versions, key=versions.count)
    odd = [f"{facts.host.name} {facts.torch_version}" for facts in hosts]
    odd = [told for told, version in zip(odd, versions, strict=True) if version != usual]
    if odd:
        raise TargetError(
            f"torch is {usual} on most hosts, but: {', '.join(odd)}",
            f"install torch {usual} there, or name another python: in the inventory",
        )


def decide_unshared(seen: Sequence[Collection[int]]) -> tuple[int, ...]:
    """Hosts outside of the largest group that see each other's files; ``seen`` by their place."""
    groups = [
        {other for other in range(len(seen)) if place in seen[other] and other in seen[place]}
        for place in range(len(seen))
    ]
    largest = max(groups, key=len, default=set())
    return tuple(place for place in range(len(seen)) if place not in largest)


def check_shared(names: Sequence[str], seen: Sequence[Collection[int]], folder: str) -> None:
    """Raises ``TargetError`` where hosts do not see what others write to the checkpoint folder."""
    alone = decide_unshared(seen)
    if alone:
        listed = ", ".join(names[place] for place in alone)
        raise TargetError(
            f"{listed}: checkpoint_dir {folder} is not the folder of the other hosts",
            "mount one there, or leave checkpoint_dir out: each host then keeps its own",
        )


def shared_folder(job: JobSpec, cwd: str) -> str | None:
    """The folder that all hosts are to share, as they have it; None where each has its own."""
    given = job.checkpoint_dir
    return given if given is None or given.startswith("/") else f"{cwd}/{given}"


def plan_on_hosts(
    job: JobSpec, facts: TargetFacts, *, run_id: str, extra_args: tuple[str, ...] = ()
) -> LaunchPlan:
    """As ``plan_run``, each node with the paths, address and accelerators of its own host."""
    count = len(facts.hosts)
    nodes = tuple(_node(job, facts, index, run_id, extra_args) for index in range(count))
    # What is not about single nodes is planned as everywhere.
    one = {"nnodes": replace(job.nnodes, min=1, max=1), "nproc_per_node": nodes[0].nproc_per_node}
    common = plan_run(
        job.model_copy(update=one),
        replace(facts, hosts=(), device_ids=nodes[0].device_ids),
        run_id=run_id,
    )
    first = facts.hosts[0]
    return replace(
        common,
        torch_version=facts.torch_version or job.torch_version,
        checkpoint_dir=checkpoint_dir_on(job, first, facts, run_id),
        agent=plan_agent(job, plan_stores(nodes, ()), facts.agent_in_image),
        nodes=nodes,
        hosts=facts.hosts,
        code=facts.code,
        ssh_config=facts.ssh_config,
    )


def comes_back(plan: LaunchPlan) -> bool:
    """Whether a host that is started anew starts its node again, without any launcher."""
    rendezvous = plan.nodes[0].rendezvous
    joins_again = isinstance(rendezvous, Elastic) and rendezvous.backend == ROSTER
    return plan.detached and plan.image is not None and plan.agent is not None and joins_again


def run_dir_on(host: HostFacts, run_id: str) -> str:
    """The run's folder on a host."""
    return f"{host.state_dir}/{RUNS_DIR}/{run_id}"


def checkpoint_dir_on(job: JobSpec, host: HostFacts, facts: TargetFacts, run_id: str) -> str:
    """The job's folder, which the hosts share, or one of the host's own, which outlives the run."""
    return shared_folder(job, facts.cwd) or f"{host.state_dir}/{CHECKPOINTS_DIR}/{run_id}"


def _node(
    job: JobSpec, facts: TargetFacts, index: int, run_id: str, extra_args: tuple[str, ...]
) -> NodePlan:
    host = facts.hosts[index]
    run_dir = run_dir_on(host, run_id)
    checkpoint_dir = checkpoint_dir_on(job, host, facts, run_id)
    inner = facts.cwd_in_code
    own = replace(
        facts,
        hosts=(),
        python=host.python,
        cwd=f"{run_dir}/{CODE_DIR}{f'/{inner}' if inner else ''}",
        rdzv_host=facts.hosts[0].address,
        local_addr=host.address,
        interface=host.interface,
        cpu_count=host.cpu_count,
    )
    # As many as there are hosts: an elastic job may have got fewer than its MAX.
    fitted = job.model_copy(update={"nnodes": replace(job.nnodes, max=len(facts.hosts))})
    shared = SharedByNodes(fitted, own, run_id, run_dir, checkpoint_dir, extra_args)
    return shared.node(index, _devices(job, facts, host))


def _devices(job: JobSpec, facts: TargetFacts, host: HostFacts) -> NodeDevices:
    wanted, asked = job.nproc_per_node, job.resources.gpus
    if facts.accelerator == "cpu":
        check_no_gpus_wanted(job, facts, host.host.name)
        number = wanted if isinstance(wanted, int) else host.host.slots or host.cpu_count
        return NodeDevices(nproc_per_node=number, device_ids=())
    number = wanted if isinstance(wanted, int) else asked or len(host.device_ids)
    gpus = asked or number
    if gpus > len(host.device_ids):
        raise KeyInputError(
            ("resources", "gpus") if asked else ("nproc_per_node",),
            f"{gpus} GPUs asked for, but {len(host.device_ids)} of {host.host.name} are free",
            "launcher hosts shows who holds the others; lower nproc_per_node, or wait",
        )
    return NodeDevices(nproc_per_node=number, device_ids=host.device_ids[:gpus])


def lease_of(plan: LaunchPlan, node: NodePlan, owner: str, launcher: str) -> dict[str, object]:
    """What a node's lease says: plain data."""
    return {
        "run_id": plan.run_id,
        "node_index": node.node_index,
        "owner": owner,
        "launcher": launcher,
        "gpus": list(node.device_ids),
        "slots": 0 if node.device_ids else node.nproc_per_node,
        "detached": plan.detached,
    }
