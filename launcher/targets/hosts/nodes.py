"""What is asked of one host for one node of a run, through an open session."""

from __future__ import annotations

import getpass
import os
import socket
import time
from typing import Any

from launcher.contract import protocol
from launcher.contract.errors import TargetError
from launcher.contract.node_plan import NodePlan
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.code import Code
from launcher.targets.hosts.line import LEASE_TTL_S
from launcher.targets.hosts.plan import lease_of, run_dir_on
from launcher.targets.hosts.render import HostNode, HostsArtifact
from launcher.targets.hosts.settings import HostFacts, HostsSettings
from launcher.targets.hosts.ssh import Session

STOP_MARGIN_S = 20.0
SEND_LIMIT_S = 600.0
ANSWER_LIMIT_S = 30.0


def take(plan: LaunchPlan, node: HostNode, session: Session) -> None:
    """Takes the node's lease, or raises ``TargetError`` saying who holds what it needs."""
    host = node.host.host
    answer = session.call(
        "take",
        leases=[own_lease(plan, node)],
        lease_dir=host.lease_dir,
        ttl_s=LEASE_TTL_S,
        slots_limit=host.slots,
    )
    if "held" in answer:
        raise TargetError(
            f"{host.name}: held by {describe_leases(answer['held'])}",
            "wait for it, or name other hosts; launcher hosts shows all leases",
        )


def own_lease(plan: LaunchPlan, node: HostNode) -> dict[str, object]:
    """The node's lease, with who takes it."""
    owner = f"{getpass.getuser()}@{socket.gethostname()}"
    return lease_of(plan, node.node, owner, str(os.getpid()))


def launch(plan: LaunchPlan, node: HostNode, secrets: dict[str, str], session: Session) -> None:
    """Starts the node's keeper, which starts the node."""
    spec = {**node.spec(plan, secrets), "lease": own_lease(plan, node)}
    session.call("start", nodes=[spec])


def describe_leases(leases: list[dict[str, Any]]) -> str:
    """Who holds what, in words."""
    return ", ".join(
        f"{lease['owner']} with {lease['run_id']} ("
        + (f"GPUs {','.join(lease['gpus'])}" if lease["gpus"] else f"{lease['slots']} slots")
        + ")"
        for lease in leases
    )


def end_on(
    session: Session,
    plan: LaunchPlan,
    host: HostFacts,
    nodes: list[int] | None,
    grace_s: float,
    *,
    tell_launcher: bool,
) -> None:
    """Ends a run's nodes on a host, ``nodes`` alone if given, and gives their leases back.

    ``tell_launcher`` lets one elsewhere that follows the run end it too, in place of new nodes.
    """
    session.call(
        "stop",
        run_id=plan.run_id,
        nodes=nodes,
        grace_s=grace_s,
        run_dir=run_dir_on(host, plan.run_id),
        tell_launcher=tell_launcher,
        lease_dir=host.host.lease_dir,
        containers=host.runtime == "docker",
        limit_s=grace_s + STOP_MARGIN_S,
    )


def ask_on(session: Session, plan: LaunchPlan, host: HostFacts, name: str, text: str) -> None:
    """Leaves a request for the launcher that follows the run, and waits until it is taken up.

    Raises ``TargetError`` where nobody follows the run, or the launcher does not answer.
    """
    run_dir = run_dir_on(host, plan.run_id)
    session.call("ask", run_dir=run_dir, name=name, text=text)
    deadline = time.monotonic() + ANSWER_LIMIT_S
    while session.call("is_asked", run_dir=run_dir, name=name)["waits"]:
        if time.monotonic() > deadline:
            raise TargetError(
                f"the launcher of {plan.run_id} does not answer", f"launcher status {plan.run_id}"
            )
        time.sleep(0.1)


def remove_on(session: Session, plan: LaunchPlan, host: HostFacts) -> list[str]:
    """Removes what a run wrote there, and says what is kept and where.

    Its checkpoints stay, where there are any; so does what the training wrote into its working
    folder, which is the sent code's and as such never copied.
    """
    answer = session.call(
        "remove",
        run_dir=run_dir_on(host, plan.run_id),
        checkpoint_dir=f"{host.state_dir}/checkpoints/{plan.run_id}",
        outputs_dir=f"{host.state_dir}/outputs/{plan.run_id}",
    )
    if not answer["kept"]:
        return []
    name, folder = host.host.name, answer["folder"]
    return [f"{name} keeps what the training wrote beside its code: scp -r {name}:{folder} ."]


def take_back(plan: LaunchPlan, node: HostNode, session: Session) -> None:
    """Undoes what was prepared for a node that is not to be started any more."""
    end_on(session, plan, node.host, [node.node.node_index], 0.0, tell_launcher=False)
    remove_on(session, plan, node.host)


def prepare(
    plan: LaunchPlan, node: HostNode, agent: bytes | None, code: Code | None, session: Session
) -> None:
    """Puts everything in place that the node starts from; what is there already is not sent."""
    own = HostsSettings.of(plan)
    if own.code is not None:
        _send_code(own.code, node, code, session)
    files = [[f"{node.run_dir}/{protocol.PLAN_FILE}", plan.to_json()]]
    if node.task is not None:
        files.append([node.task.path, node.task.text])
    session.call(
        "prepare",
        blob=agent or b"",
        run_dir=node.run_dir,
        state_dir=node.host.state_dir,
        folders=list(node.folders),
        files=files,
        agent=node.agent_path if agent else None,
        code=HostsSettings.of(plan).code,
        needed=[node.cwd, *(mount.source for mount in node.node.mounts)],
    )


def _send_code(hash: str, node: HostNode, code: Code | None, session: Session) -> None:
    state_dir = node.host.state_dir
    if session.call("has", state_dir=state_dir, hashes=[hash])["have"]:
        return
    if code is None or code.hash != hash:
        name = node.host.host.name
        raise TargetError(f"{name}: the run's code is gone from there", "start the job anew")
    session.call("store", state_dir=state_dir, hash=hash, blob=code.data, limit_s=SEND_LIMIT_S)


def by_host(plan: LaunchPlan) -> dict[str, tuple[HostFacts, list[int]]]:
    """Each host of a plan by name, with the indices of its nodes. Pure."""
    found: dict[str, tuple[HostFacts, list[int]]] = {}
    for node in plan.nodes:
        host = HostsSettings.of(plan).hosts[node.node_index]
        found.setdefault(host.host.name, (host, []))[1].append(node.node_index)
    return found


def indices_of(artifact: HostsArtifact) -> set[int]:
    """The nodes that it starts. Pure."""
    return {node.node.node_index for node in artifact.nodes}


def key_of(node: NodePlan) -> str:
    """A node's name among a host's states. Pure."""
    return f"{node.node_index}.{node.incarnation}"
