"""Brings the image to the hosts: sent from this machine's engine, or pulled there."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.contract.errors import TargetError
from launcher.targets import short_command
from launcher.targets.conversation import Conversation
from launcher.targets.hosts.program import messages
from launcher.targets.hosts.ssh import REQUEST_LIMIT_S, Session

CHUNK_BYTES = 4 << 20
PROVIDE_LIMIT_S = 3600.0
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
    argv = ("docker", "image", "inspect", "--format", messages.IMAGE_FORMAT, name)
    told = (short_command.read_output(argv, 20.0) or "").strip()
    id, _, torch_version = told.partition("\n")
    return Image(name=name, id=id, torch_version=torch_version)


def provide_image(image: Image, session: Session) -> None:
    """Sends a host the image, or has it pulled there. Raises ``TargetError`` if that fails."""
    asked = messages.FindImage(image=image.name, pull=not image.id)
    there = session.call(asked, limit_s=REQUEST_LIMIT_S if image.id else PROVIDE_LIMIT_S)
    if image.id and there != image.id:
        _send(image, session)


def _send(image: Image, session: Session) -> None:
    """Streams the image into the host's engine, a few megabytes at a time."""
    save = Conversation(("docker", "save", image.name))
    try:
        session.send(messages.LoadImage(limit_s=PROVIDE_LIMIT_S), limit_s=SILENCE_LIMIT_S)
        while chunk := save.read(CHUNK_BYTES, SILENCE_LIMIT_S):
            session.send(messages.ImageChunk(), chunk, limit_s=SILENCE_LIMIT_S)
    finally:
        code, said = save.end()
    session.send(messages.ImageEnd(complete=code == 0), limit_s=SILENCE_LIMIT_S)
    try:
        session.receive(limit_s=PROVIDE_LIMIT_S)
    except TargetError as error:
        name = session.host.name
        why = said.strip() if code else error.what.removeprefix(f"{name}: ")
        raise TargetError(
            f"{name}: image {image.name} could not be sent there: {why}",
            f"docker save {image.name} | ssh {name} docker load",
        ) from error
