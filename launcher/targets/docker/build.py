"""``launcher build``: an image from a base, requirements and code, by the engine's own BuildKit;
fixes for what fails.

The docker command line builds, as the SDK knows no BuildKit. It reads the context as a tar on
standard input: only the listed files of the code, of which no second copy lies on the disk.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import docker.errors
from pydantic import TypeAdapter, ValidationError

from launcher.code.record import PackedCode
from launcher.contract import protocol
from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError, LauncherError, TargetError
from launcher.job.types import Image
from launcher.targets.agent_archive import read_agent_version, read_archive
from launcher.targets.docker.engine import Engine, engine_errors
from launcher.targets.subprocesses import short_command
from launcher.targets.subprocesses.conversation import Conversation

CODE = protocol.CONTAINER_CODE
USER = "1000:1000"
"""By number: Kubernetes' runAsNonRoot cannot judge a name."""
PROGRAM = "in_image.py"
LOOK_LIMIT_S = 10.0
"""How long a docker client may take to say what it is."""
PROXIES = tuple(
    spelled
    for name in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
    for spelled in (name, name.upper())
)
# No `# syntax=` line, which would pull a frontend: nothing newer than what Docker 20.10 has.
DOCKERFILE = f"""
ARG BASE
FROM scratch AS given
COPY build/ /
FROM ${{BASE}} AS prepared
USER root
ENV PATH=/opt/launcher-venv/bin:$PATH
RUN --mount=type=bind,from=given,target=/mnt --mount=type=cache,target=/root/.cache/pip \\
    command -v python3 >/dev/null || {{ \\
        printf 'error: the base image has no python3 on its PATH\\n'; \\
        printf '  fix: --base with Python 3.10 or newer and torch, such as pytorch/pytorch\\n'; \\
        exit 1; }}; \\
    python3 /mnt/{PROGRAM} install && mkdir -p {CODE} && chmod 1777 {CODE}
FROM prepared AS look
RUN --mount=type=bind,from=given,target=/mnt python3 /mnt/{PROGRAM} facts >/facts.json
FROM scratch AS facts
COPY --from=look /facts.json /
FROM prepared AS image
# Any uid may run it, one that /etc/passwd does not know too.
ENV HOME=/tmp USER=trainer PYTHONUNBUFFERED=1
COPY agent/ /launcher/
COPY code/ {CODE}/
ARG BASE
ARG INNER
ARG TORCH
ARG CUDA
ARG AGENT
WORKDIR {CODE}/${{INNER}}
LABEL {protocol.LABEL_TORCH}=${{TORCH}} {protocol.LABEL_CUDA}=${{CUDA}} \\
      {protocol.LABEL_AGENT}=${{AGENT}} org.opencontainers.image.base.name=${{BASE}}
USER {USER}
"""
STEPS = re.compile(r"#\d+ \d+\.\d+ ((?!error: |  fix: ).*)")
"""What a step prints, in BuildKit's plain progress; errors are shown at the end."""
ALL = re.compile(r"(.*)")
HINTS = (
    ("unable to find user root", "--base with a shell, python3 and torch, such as pytorch/pytorch"),
    ('"/bin/sh": stat', "--base with a shell, python3 and torch, such as pytorch/pytorch"),
    ("no space left", "docker builder prune frees what earlier builds left (docker system df)"),
    ("denied", "docker login {host}, then the same command"),
    ("basic auth", "docker login {host}, then the same command"),
    ("unauthorized", "docker login {host}, then the same command"),
    ("connection refused", "correct the registry's name: nothing answers at {host}"),
    ("no such host", "correct the registry's name {host}, or this machine's network"),
)
"""A part of an engine's message, and the fix."""

Send = Callable[[IO[bytes]], None]


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be built. ``requirements`` are texts by name; ``wheels`` replace pip's index."""

    base: str
    tag: str
    code: PackedCode
    requirements: Mapping[str, str]
    wheels: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Built:
    """The image that was built; ``torch`` and ``cuda`` are the versions that torch reports.

    ``is_same``: the tag named this very image before.
    """

    torch: str
    cuda: str
    is_same: bool


def check_tag(tag: str, *, pushes: bool) -> None:
    """Raises ``InputError`` for what no image may be called, or what leads to no registry."""
    fix = "--tag registry.example/me/train:1, in small letters"
    try:
        TypeAdapter(Image).validate_python(tag)
    except ValidationError:
        raise InputError(f"--tag {tag}: is no image's name", fix) from None
    if "@" in tag:
        raise InputError(f"--tag {tag}: a digest is made by the registry", fix)
    host, slash, _ = tag.partition("/")
    if pushes and not (slash and (host == "localhost" or set(host) & set(".:"))):
        what = f"--push: --tag {tag} names no registry"
        raise InputError(what, "--tag registry.example/me/train:1, or docker.io/me/train:1")


def read_wheels(folder: Path) -> tuple[Path, ...]:
    """The packages in a folder. Raises ``InputError`` if there are none."""
    wheels = sorted(p for p in folder.glob("*") if p.name.endswith((".whl", ".tar.gz", ".zip")))
    if not wheels:
        fix = f"pip download -r requirements.txt -d {folder}"
        raise InputError(f"--wheelhouse {folder}: is no folder with packages", fix)
    return tuple(wheels)


class Builder:
    """The engine, and the client that builds on it. ``show`` gets what is printed on the way."""

    def __init__(self, show: Callable[[str], None]) -> None:
        """Raises ``TargetError`` if nothing can be built here."""
        self._show = show
        self._engine = Engine(SystemClock())
        self._client, self._words = find_client()
        self._engine.read_info()

    def build(self, order: Order) -> Built:
        """Builds the image. The image that had the tag before stays, untagged.

        Raises ``LauncherError``. On Ctrl-C the engine stops the build.
        """
        self._need_base(order.base)
        before, args = self._id_of(order.tag), {"BASE": order.base}
        with tempfile.TemporaryDirectory() as folder:
            self._build(order, args, "facts", "--output", f"type=local,dest={folder}")
            facts = json.loads(Path(folder, "facts.json").read_text())
        args |= {"INNER": order.code.record.inner, "AGENT": read_agent_version()}
        # Without the suffix of torch's build, as in the images of this project.
        args |= {"TORCH": facts["torch"].partition("+")[0], "CUDA": facts["cuda"]}
        # Without it buildx' own builders do not give the image to the engine.
        load = ("--load",) if "buildx" in self._words else ()
        self._build(order, args, "image", "--tag", order.tag, *load)
        after = self._id_of(order.tag)
        return Built(torch=facts["torch"], cuda=facts["cuda"], is_same=before == after)

    def push(self, tag: str) -> None:
        """Pushes an image. Raises ``LauncherError``."""
        code, lines = self._run(("push", tag), ALL)
        if code != 0:
            fix = _hint(lines[-1], tag.partition("/")[0]) or f"docker push {tag}"
            raise LauncherError(f"{tag} was built, but not pushed: {lines[-1]}", fix)

    def _need_base(self, base: str) -> None:
        if self._id_of(base):
            return
        self._show(f"pulling {base}")
        code, lines = self._run(("pull", base), ALL)
        if code != 0:
            what = f"--base {base}: is not on this machine, and cannot be pulled: {lines[-1]}"
            raise TargetError(what, "correct --base; docker images lists what is here")

    def _id_of(self, image: str) -> str:
        with engine_errors(f"inspect {image}"):
            try:
                image_facts = self._engine.api.inspect_image(image)  # type: ignore[no-untyped-call]
            except docker.errors.ImageNotFound:
                return ""
            return str(image_facts["Id"])

    def _build(self, order: Order, args: Mapping[str, str], target: str, *more: str) -> None:
        """Builds one stage of ``DOCKERFILE``. Raises ``LauncherError``."""
        # BuildKit keeps proxy arguments out of the image, and out of the key of cached layers.
        given = [f"{name}={args[name]}" for name in args] + [p for p in PROXIES if p in os.environ]
        options = [word for value in given for word in ("--build-arg", value)]
        words = (*self._words, "--progress=plain", "--target", target, *options, *more, "-")
        send = functools.partial(write_context, order, with_code=target == "image")
        code, lines = self._run(words, STEPS, send)
        if code != 0:
            what, fix = parse_error(lines)
            raise LauncherError(f"{order.tag} was not built: {what}", fix)

    def _run(
        self, words: Sequence[str], shown: re.Pattern[str], send: Send | None = None
    ) -> tuple[int, list[str]]:
        """Runs the client with what ``send`` writes; its exit code and its lines, at least one.

        An error or Ctrl-C here kills the client, and the engine then stops its work.
        """
        # On one stream: the engine's errors belong among what the steps print.
        merged = ("sh", "-c", 'exec "$@" 2>&1', "sh", self._client, *words)
        talk = Conversation(merged, env={"DOCKER_BUILDKIT": "1"})
        lines = []
        try:
            # A client that fails at once reads nothing, and its output tells why.
            with contextlib.suppress(BrokenPipeError):
                if send is not None:
                    send(talk.stdin)
                talk.stdin.close()
            # Ended by the client, or by the person who sees its progress.
            for data in talk.stdout:
                lines.append(data.decode(errors="replace").rstrip())
                if match := shown.fullmatch(lines[-1]):
                    self._show(match[1])
        except BaseException:
            # All: the client runs buildx as a program of its own.
            talk.kill_all()
            raise
        finally:
            code, _ = talk.end()
        return code, [line for line in lines if line] or [f"docker ended with exit code {code}"]


def find_client() -> tuple[str, tuple[str, ...]]:
    """The first docker client on PATH that has BuildKit, and its words for a build.

    Clients up to 20.10 contain BuildKit; later ones need the plugin buildx, which may be missing.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    clients = [path for folder in folders if os.access(path := f"{folder}/docker", os.X_OK)]
    for client in clients:
        if short_command.read_output((client, "buildx", "version"), LOOK_LIMIT_S) is not None:
            return client, ("buildx", "build")
        version = short_command.read_output((client, "--version"), LOOK_LIMIT_S) or ""
        match = re.search(r"version (\d+)\.", version)
        if match and 18 < int(match[1]) < 23:
            return client, ("build",)
    if not clients:
        raise TargetError("no docker client is on PATH", "install Docker, or build elsewhere")
    what = f"no BuildKit in {', '.join(clients)}"
    raise TargetError(what, "install docker's buildx plugin (docker-buildx, docker-buildx-plugin)")


def write_context(order: Order, stream: IO[bytes], *, with_code: bool) -> None:
    """All that a build may read, as a tar."""
    files = {
        "Dockerfile": DOCKERFILE.encode(),
        f"build/{PROGRAM}": Path(__file__).with_name(PROGRAM).read_bytes(),
        **{f"build/{name}": text.encode() for name, text in order.requirements.items()},
        "agent/agent.pyz": read_archive(),
        "agent/agent.version": f"{read_agent_version()}\n".encode(),
    }
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as context:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            context.addfile(info, io.BytesIO(data))
        for path in order.wheels:
            info = tarfile.TarInfo(f"build/wheels/{path.name}")
            info.size = path.stat().st_size
            with path.open("rb") as file:
                context.addfile(info, file)
        if with_code:
            _add_code(context, order.code)


def _add_code(context: tarfile.TarFile, code: PackedCode) -> None:
    """Adds the code below ``code/``, in folders that any user may write to: a script makes files
    beside itself, and the image's user owns none of the folders."""
    made: set[PurePosixPath] = set()

    def make(folder: PurePosixPath) -> None:
        if folder not in made and folder.name:
            make(folder.parent)
            made.add(folder)
            info = tarfile.TarInfo(str(folder))
            info.type, info.mode = tarfile.DIRTYPE, 0o1777
            context.addfile(info)

    make(PurePosixPath("code", code.record.inner))
    with tarfile.open(fileobj=io.BytesIO(code.data)) as archive:
        for member in archive:
            path = PurePosixPath("code", member.name)
            make(path.parent)
            # PAX headers hold the old name if it is not ASCII, and would win.
            member.name, member.pax_headers = str(path), {}
            context.addfile(member, archive.extractfile(member) if member.isreg() else None)


def parse_error(lines: Sequence[str]) -> tuple[str, str]:
    """What went wrong in a build, and the fix: a step's own words, else the engine's."""
    output = [re.sub(r"^#\d+ (\d+\.\d+ )?", "", line) for line in lines]
    for number, line in reversed(list(enumerate(output))):
        if line.startswith("error: "):
            fix = "".join(output[number + 1 : number + 2])
            return line.removeprefix("error: "), fix.strip().removeprefix("fix: ")
    what = re.sub(r"running \[.*\]", "running a step", output[-1])
    return what, _hint(" ".join(output)) or "what the build printed stands above"


def _hint(text: str, host: str = "REGISTRY") -> str:
    return next((hint.format(host=host) for part, hint in HINTS if part in text), "")
