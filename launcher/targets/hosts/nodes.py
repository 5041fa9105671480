"""What is asked of a host for a run's node: its lease, its files, code and image, its end, and the
last copy of what it wrote."""

from __future__ import annotations

import contextlib
import getpass
import socket
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from launcher.contract import protocol, typed
from launcher.contract.errors import TargetError
from launcher.contract.node_plan import NodePlan
from launcher.plan.launch_plan import LaunchPlan
from launcher.targets.hosts.connection import BROUGHT_BYTES, copy_once
from launcher.targets.hosts.plan import run_dir_on
from launcher.targets.hosts.program import messages
from launcher.targets.hosts.program.code_store import has_code, prepare_run, store_code
from launcher.targets.hosts.program.processes import inspect_image
from launcher.targets.hosts.program.requests import (
    ask_launcher,
    end_nodes,
    find_image,
    remove_run,
)
from launcher.targets.hosts.program.session import take_lease
from launcher.targets.hosts.render import HostNode
from launcher.targets.hosts.settings import Host, HostFacts, HostsSettings
from launcher.targets.hosts.ssh.client import Ssh
from launcher.targets.hosts.ssh.session import REQUEST_LIMIT_S, Session
from launcher.targets.subprocesses.conversation import Conversation

if TYPE_CHECKING:
    from launcher.code.record import PackedCode
    from launcher.follow.target import NodeObservation

STOP_MARGIN_S = 20.0
SENDING_LIMIT_S = 600.0
"""How long it may take to send the code."""
CHUNK_BYTES = 4 << 20
PROVIDE_LIMIT_S = 3600.0
"""How long a host may take to pull an image, or to load one that was sent."""
ENGINE_SILENCE_S = 300.0
"""How long an engine may take to give the next part of an image, and a host to take it."""


def acquire_lease(plan: LaunchPlan, node: HostNode, session: Session) -> None:
    """Takes the node's lease, or raises ``TargetError`` saying who holds what it needs."""
    host, gpus = node.host.host, node.node.device_ids
    lease = messages.Lease(
        run_id=plan.run_id,
        node_index=node.node.node_index,
        owner=f"{getpass.getuser()}@{socket.gethostname()}",
        gpus=gpus,
        slots=0 if gpus else node.node.nproc_per_node,
        detached=plan.detached,
    )
    held = session.call(
        take_lease,
        lease=lease,
        lease_dir=host.lease_dir,
        run_dir=node.run_dir,
        slots_limit=host.slots,
        containers=node.host.runtime == "docker",
    )
    if held:
        holders = ", ".join(f"{it.owner} with {it.run_id} ({it.holding})" for it in held)
        raise TargetError(
            f"{host.name}: held by {holders}",
            f"wait for it, or name other hosts; {typed.command('hosts')} shows all leases",
        )


def end(
    session: Session,
    plan: LaunchPlan,
    host: HostFacts,
    index: int | None,
    grace_s: float,
    *,
    tell_launcher: bool,
) -> None:
    """Ends a node of a run, or without ``index`` all that the run has on this host.

    ``tell_launcher``: also has a launcher elsewhere that follows the run end it. It has to know
    before it sees the nodes' end.
    """
    if tell_launcher:
        run_dir, text = run_dir_on(host, plan.run_id), "stopped from elsewhere\n"
        session.call(ask_launcher, run_dir=run_dir, name=protocol.STOP_RUN_FILE, text=text)
    session.call_within(
        grace_s + STOP_MARGIN_S,
        end_nodes,
        run_id=plan.run_id,
        node=index,
        grace_s=grace_s,
        in_containers=host.runtime == "docker",
    )


def bring_last(ssh: Ssh, session: Session, plan: LaunchPlan, index: int) -> list[str]:
    """Copies here what a run has written on a host, and removes it there; returns notes.

    Checkpoints stay, and so does what the training wrote beside its code and is not copied here.
    """
    host = HostsSettings.of(plan).hosts[index]
    # All nodes have the same code, and most write the same beside it.
    limit = BROUGHT_BYTES if index == plan.nodes[0].node_index else 0
    here = Path(plan.run_dir)
    brought = here / protocol.CODE_DIR
    is_new = limit > 0 and not brought.exists()
    copy_once(session, plan, index, beside_code_bytes=limit, is_last=True)
    folder = f"{host.state_dir}/{messages.OUTPUTS_DIR}/{plan.run_id}"
    kept = session.call(
        remove_run,
        run_dir=run_dir_on(host, plan.run_id),
        checkpoint_dir=f"{host.state_dir}/{messages.CHECKPOINTS_DIR}/{plan.run_id}",
        outputs_dir=folder,
        brought_bytes=limit,
    )
    notes = []
    if kept:
        fetch = ssh.fetching(host.host, folder)
        notes.append(f"{host.name} keeps what the training wrote beside its code: {fetch}")
    if is_new and brought.exists():
        notes.append(f"what the training wrote beside its code: {brought}")
    return notes


def prepare(
    plan: LaunchPlan,
    node: HostNode,
    agent: bytes | None,
    code: PackedCode | None,
    token: str,
    session: Session,
) -> None:
    """Sends what the node starts from, unless it is there already."""
    hash = plan.code.hash if plan.code else None
    if hash is not None:
        # Before the host has a folder of the run: a send that is cut leaves none.
        _send_code(hash, node, code, session)
    files = [[f"{node.run_dir}/{protocol.PLAN_FILE}", plan.to_json()]]
    if node.task is not None:
        files.append([node.task.path, node.task.text])
    own_script = plan.image is None and node.node.command[0] != "-m"
    script = [str(PurePosixPath(node.spec.cwd, node.node.command[0]))] if own_script else []
    session.call(
        prepare_run,
        run_dir=node.run_dir,
        state_dir=node.host.state_dir,
        folders=list(node.folders),
        files=files,
        agent=agent or b"",
        code=hash,
        needed=[node.spec.cwd, *script, *(m.source for m in node.node.mounts)],
        token=token,
    )


def _send_code(hash: str, node: HostNode, code: PackedCode | None, session: Session) -> None:
    state_dir = node.host.state_dir
    if session.call(has_code, state_dir=state_dir, hash=hash):
        return
    if code is None or code.hash != hash:
        what = f"{node.host.name}: neither it nor the run folder has the run's code any more"
        raise TargetError(what, "start the job anew")
    if (change := code.change) and session.call_within(
        SENDING_LIMIT_S,
        store_code,
        state_dir=state_dir,
        hash=hash,
        archive=change.data,
        base=change.base,
        start=change.start,
        end=change.end,
    ):
        return
    session.call_within(
        SENDING_LIMIT_S, store_code, state_dir=state_dir, hash=hash, archive=code.data
    )


def key_of(node: NodePlan | NodeObservation) -> str:
    """A node's name among a host's states. Pure."""
    return f"{node.node_index}.{node.incarnation}"


# -- its image -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image as this machine's engine has it; empty values where it does not."""

    name: str
    id: str = ""
    torch_version: str = ""


def read_image(name: str) -> Image:
    """The image as this machine's engine has it, if there is one."""
    id, torch_version = inspect_image(name)
    return Image(name=name, id=id, torch_version=torch_version)


def provide_image(image: Image, ssh: Ssh, session: Session) -> None:
    """Sends a host the image, or has it pulled there. Raises ``TargetError`` if that fails."""
    pull_s = 0.0 if image.id else PROVIDE_LIMIT_S
    there = session.call_within(
        pull_s or REQUEST_LIMIT_S, find_image, image=image.name, pull_s=pull_s
    )
    if image.id and there != image.id and (why := _send(image, ssh, session.host)):
        raise TargetError(
            f"{session.host.name}: image {image.name} could not be sent there: {why}",
            f"docker save {image.name} | {ssh.entering(session.host)} docker load",
        )


def _send(image: Image, ssh: Ssh, host: Host) -> str:
    """Streams the image into the host's engine; returns why that failed, empty if it did not."""
    save = Conversation(("docker", "save", image.name))
    try:
        with ssh.feed(host, "exec docker load --quiet") as load:
            # If the host's engine ends before the image does, it says why.
            with contextlib.suppress(BrokenPipeError):
                while chunk := save.read_bytes(CHUNK_BYTES, ENGINE_SILENCE_S):
                    with load.limit(ENGINE_SILENCE_S):
                        load.stdin.write(chunk)
                code, errors = save.end()
                if code:
                    return errors.strip() or f"docker save ended with exit code {code}"
                load.stdin.close()
            load.read_bytes(1 << 16, PROVIDE_LIMIT_S)  # until it has ended
            code, errors = load.end()
    finally:
        save.end()
    return "" if code == 0 else errors.strip() or f"docker load ended with exit code {code}"
