"""Brings the image to the hosts: sent from this machine's engine, or pulled there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from launcher.contract.errors import TargetError
from launcher.targets.conversation import Conversation
from launcher.targets.hosts.program.processes import inspect_image
from launcher.targets.hosts.program.requests import find_image
from launcher.targets.hosts.settings import Host
from launcher.targets.hosts.ssh import REQUEST_LIMIT_S, Session, Ssh

CHUNK_BYTES = 4 << 20
PROVIDE_LIMIT_S = 3600.0
"""How long a host may take to pull an image, or to load one that was sent."""
SILENCE_LIMIT_S = 300.0
"""How long an engine may take to give the next part of an image, and a host to take it."""


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
                while chunk := save.read(CHUNK_BYTES, SILENCE_LIMIT_S):
                    with load.limit(SILENCE_LIMIT_S):
                        load.stdin.write(chunk)
                code, said = save.end()
                if code:
                    return said.strip() or f"docker save ended with exit code {code}"
                load.stdin.close()
            load.read(1 << 16, PROVIDE_LIMIT_S)  # until it has ended
            code, said = load.end()
    finally:
        save.end()
    return "" if code == 0 else said.strip() or f"docker load ended with exit code {code}"
