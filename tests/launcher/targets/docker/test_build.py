"""``launcher build`` on a real engine: what is in an image, what is reused, and what is refused."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from launcher.contract import protocol
from launcher.targets.agent_archive import read_agent_version
from launcher.targets.docker.build import find_client
from tests.launcher.runner import Runner
from tests.waiting import wait_until

pytestmark = pytest.mark.docker

BASE = "fabric-train:cpu"
SCRIPT = """
import os, small, torch
with open("out.txt", "w") as file:
    file.write("written")
print("small", small.NUMBER, "in", os.getcwd(), sorted(os.listdir(".")), flush=True)
"""
NO_TORCH = "fabric-train-tests:no-torch"
BASES = {
    "no-python": "RUN rm -f /usr/bin/python3*\n",
    "no-pip": "RUN rm -rf /usr/lib/python3*/ensurepip\n",
    "no-torch": "",
    "managed": "RUN mkdir /usr/lib/python3/dist-packages/torch && printf '%s\\n' "
    "'class version: cuda = None' '__version__ = \"9.9.9+stand.in\"' "
    ">/usr/lib/python3/dist-packages/torch/__init__.py\n",
}
"""What else a base made of ours lacks, or has."""
SLOW = """
import time
def build_wheel(*given, **more):
    time.sleep(300)
get_requires_for_build_wheel = prepare_metadata_for_build_wheel = build_wheel
"""


@pytest.fixture
def tag(engine: Any) -> Iterator[str]:
    """The name of an image to be built, which is gone afterwards."""
    name = f"registry.example/me/tests:build-{uuid4().hex[:8]}"
    yield name
    with contextlib.suppress(Exception):
        engine.images.remove(name, force=True)


@pytest.fixture(scope="module")
def no_torch(engine: Any) -> Iterator[str]:
    """Our image without the environment in which it has its Python and torch."""
    lines = f"FROM {BASE}\nUSER root\nRUN rm -rf /opt/venv\n"
    engine.images.build(fileobj=io.BytesIO(lines.encode()), tag=NO_TORCH, rm=True)
    yield NO_TORCH
    engine.images.remove(NO_TORCH, force=True)


@pytest.fixture
def base(engine: Any, no_torch: str, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"fabric-train-tests:base-{request.param}"
    lines = f"FROM {no_torch}\n{BASES[request.param]}"
    engine.images.build(fileobj=io.BytesIO(lines.encode()), tag=name, rm=True)
    yield name
    engine.images.remove(name, force=True)


@pytest.fixture
def folder(launcher: Runner) -> Path:
    """A repository with a script in a folder of its own, and a wheel of the package it needs."""
    inner = launcher.folder / "inner ö"
    inner.mkdir()
    (inner / "train.py").write_text(SCRIPT)
    (inner / "requirements.txt").write_text("small\n")
    write_wheel(launcher.folder / "wheels", "small", "NUMBER = 7\n")
    (launcher.folder / ".gitignore").write_text("*.bin\nwheels/\nruns/\n")
    with (launcher.folder / "data.bin").open("wb") as file:
        # Without blocks on the disk; to read it would take longer than the test may.
        file.truncate(200 << 30)
    subprocess.run(["git", "init", "-q", launcher.folder], check=True)
    launcher.folder = inner
    return inner


def write_wheel(folder: Path, name: str, module: str) -> None:
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", module)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        words = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", words)
        wheel.writestr(f"{info}/RECORD", "")


def build(launcher: Runner, tag: str, *more: str, base: str = BASE) -> Any:
    words = ("build", "train.py", "--base", base, "--tag", tag, "--wheelhouse", "../wheels")
    return launcher(*words, *more)


def layers(engine: Any, image: str) -> list[str]:
    found: list[str] = engine.api.inspect_image(image)["RootFS"]["Layers"]
    return found


def test_an_image_has_code_and_requirements_is_pushed_and_runs_on_docker(
    launcher: Runner, folder: Path, tag: str, engine: Any
) -> None:
    # A stand-in pushes, as no registry is here that takes gigabytes; the real client builds.
    real = find_client()[0]
    put_client(launcher, f'[ "$1" != push ] || {{ echo "sent $2"; exit 0; }}\nexec {real} "$@"\n')
    done = build(launcher, tag, "--push")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tag}\n"
    assert f"sent {tag}\nlauncher: {tag} was pushed\n" in done.stderr
    assert "torch 2.13.0+cpu, no CUDA" in done.stderr
    assert f"run train.py --image {tag} --code image" in done.stderr
    config = engine.api.inspect_image(tag)["Config"]
    assert config["User"] == "1000:1000"
    assert config["WorkingDir"] == "/launcher/code/inner ö"
    assert config["Labels"][protocol.LABEL_TORCH] == "2.13.0"
    assert config["Labels"][protocol.LABEL_CUDA] == ""
    assert config["Labels"][protocol.LABEL_AGENT] == read_agent_version()

    of_image = ("train.py", "--image", tag, "--code", "image", "--nproc-per-node", "1")
    ran = launcher("run", *of_image, "--on", "docker", "--set", "engine=agent")
    assert ran.returncode == 0, ran.stderr
    said = "small 7 in /launcher/code/inner ö ['out.txt', 'requirements.txt', 'train.py']"
    assert said in ran.stdout
    assert "holds" not in ran.stderr  # it is this launcher's agent

    command = ["sh", "-c", "cat train.py ../.gitignore && touch ../new && ls -A .."]
    listed = engine.containers.run(tag, command, user="54321:54321", entrypoint=[], remove=True)
    assert listed.decode().splitlines()[-3:] == [".gitignore", "inner ö", "new"]


@pytest.mark.slow
def test_a_code_change_builds_on_the_layer_of_the_requirements(
    launcher: Runner, folder: Path, tag: str, engine: Any
) -> None:
    assert build(launcher, tag).returncode == 0
    before, id = layers(engine, tag), engine.api.inspect_image(tag)["Id"]
    same = build(launcher, tag)
    assert "is up to date" in same.stderr
    assert "small" not in same.stderr.replace("requirements", "")  # pip did not run
    assert engine.api.inspect_image(tag)["Id"] == id

    (folder / "train.py").write_text(SCRIPT + "# changed\n")
    assert build(launcher, tag).returncode == 0
    after, base = layers(engine, tag), layers(engine, BASE)
    kept = len(base) + 2  # the requirements and the agent
    assert after[:kept] == before[:kept]
    assert after[kept] != before[kept]

    (folder / "requirements.txt").write_text("small==1.0\n")
    assert build(launcher, tag).returncode == 0
    assert layers(engine, tag)[len(base)] != before[len(base)]


WITHOUT_PYTHON = ("no-python", "the base image has no python3", "--base with Python")
WITHOUT_TORCH = ("no-torch", "there is no torch for the image's", "--base with torch")
WITHOUT_PIP = ("no-pip", "python3 has no pip, and no venv", "--base with pip")


@pytest.mark.slow  # a build makes a base first; requirements that fail end a build in every CI
@pytest.mark.parametrize(
    ("base", "what", "fix"), [WITHOUT_PYTHON, WITHOUT_PIP, WITHOUT_TORCH], indirect=["base"]
)
def test_a_base_without_what_it_needs_is_told_with_the_fix(
    launcher: Runner, folder: Path, tag: str, base: str, what: str, fix: str
) -> None:
    done = build(launcher, tag, base=base)
    assert done.returncode == 1, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert error.startswith(f"error: {tag} was not built: ")
    assert what in error
    assert hint.startswith(f"  fix: {fix}")


@pytest.mark.slow
@pytest.mark.parametrize("base", ["managed"], indirect=True)
def test_a_python_that_pip_must_not_touch_gets_an_environment_on_top(
    launcher: Runner, folder: Path, tag: str, base: str, engine: Any
) -> None:
    done = build(launcher, tag, base=base)
    assert done.returncode == 0, done.stderr
    words = ["-c", "import small, torch, sys; print(small.NUMBER, torch.__version__, sys.prefix)"]
    said = engine.containers.run(tag, words, entrypoint=["python3"], remove=True).decode()
    assert said == "7 9.9.9+stand.in /opt/launcher-venv\n"
    config = engine.api.inspect_image(tag)["Config"]
    assert config["Labels"][protocol.LABEL_TORCH] == "9.9.9"


@pytest.mark.parametrize(
    ("requirements", "more", "what", "fix"),
    [
        (
            "torch==2.1.0",
            True,
            "want another torch than the base image's 2.13.0+cpu: The user requested torch==2.1.0",
            "leave torch out of the requirements",
        ),
        (
            "absent",
            True,
            "No matching distribution found for absent",
            "put it into the folder of --wheelhouse, for the image's Python 3.11",
        ),
        pytest.param(
            "--index-url http://127.0.0.1:9/simple\nabsent",
            False,
            "pip does not reach its index from the build: NewConnectionError",
            "pip download -r FILE",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_requirements_that_cannot_be_had_are_told_with_the_fix(
    launcher: Runner, folder: Path, tag: str, requirements: str, more: bool, what: str, fix: str
) -> None:
    (folder / "requirements.txt").write_text(f"{requirements}\n")
    words = ("--wheelhouse", "../wheels") if more else ()
    done = launcher("build", "train.py", "--base", BASE, "--tag", tag, *words)
    assert done.returncode == 1, done.stderr
    error, hint = done.stderr.splitlines()[-2:]
    assert what in error
    assert hint.startswith(f"  fix: {fix}")


def test_a_base_that_is_nowhere_is_told_with_the_engines_word(
    launcher: Runner, folder: Path, tag: str
) -> None:
    done = build(launcher, tag, base="127.0.0.1:9/none/such:1")
    assert done.returncode == 3, done.stderr
    assert "is not on this machine, and cannot be pulled: " in done.stderr
    assert "connection refused" in done.stderr
    assert "docker images" in done.stderr.splitlines()[-1]


def test_ctrl_c_ends_the_build_in_the_engine_too(
    launcher: Runner, folder: Path, tag: str, engine: Any
) -> None:
    with tarfile.open(folder.parent / "wheels/slow-1.0.tar.gz", "w:gz") as archive:
        project = '[build-system]\nrequires = []\nbuild-backend = "back"\nbackend-path = ["."]\n'
        for name, text in (("pyproject.toml", project), ("back.py", SLOW), ("PKG-INFO", "")):
            info = tarfile.TarInfo(f"slow-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    (folder / "requirements.txt").write_text(f"slow\n# {tag}\n")
    words = ("build", "train.py", "--base", BASE, "--tag", tag, "--wheelhouse", "../wheels")
    process = launcher.start(*words)
    assert process.stderr is not None
    while b"slow-1.0.tar.gz" not in (line := process.stderr.readline()):
        assert line, "the build ended"
    assert steps()
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"interrupted; nothing was left running" in said
    wait_until(lambda: not steps())
    assert not [child for child in children if child.is_running()]
    assert engine.images.list(name=tag) == []


def test_ctrl_c_ends_a_client_with_the_plugin_that_it_runs(
    launcher: Runner, folder: Path, tag: str
) -> None:
    hangs = "cat >/dev/null\nsleep 300 &\necho '#1 1.0 up'\nwait"
    put_client(launcher, f'[ "$2" != version ] || exit 0\n{hangs}\n')
    process = launcher.start("build", "train.py", "--base", BASE, "--tag", tag)
    assert process.stderr is not None
    while process.stderr.readline() != b"up\n":
        assert process.poll() is None
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) == 2
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    wait_until(lambda: not any(child.is_running() for child in started))


def put_client(launcher: Runner, script: str) -> None:
    """Puts a stand-in for the docker client first on PATH."""
    repository = launcher.folder.parent
    client = repository.with_name(f"{repository.name}-bin") / "docker"
    client.parent.mkdir()
    client.write_text(f"#!/bin/sh\n{script}")
    client.chmod(0o755)
    launcher.env["PATH"] = f"{client.parent}:{launcher.env['PATH']}"


def steps() -> list[int]:
    """Steps of builds that run on the engine, which is on this machine."""
    found = psutil.process_iter(["cmdline"])
    return [p.pid for p in found if "/mnt/in_image.py" in (p.info["cmdline"] or ())]


@pytest.mark.parametrize(
    ("env", "what", "fix"),
    [
        ({"PATH": os.path.dirname(sys.executable)}, "no docker client is on PATH", "install"),
        ({"DOCKER_HOST": "unix:///none/such"}, "no Docker engine answers at", "start Docker"),
    ],
)
def test_a_machine_without_docker_is_told_so(
    launcher: Runner, folder: Path, env: dict[str, str], what: str, fix: str
) -> None:
    launcher.env |= env
    done = build(launcher, "train:1")
    assert done.returncode == 3, done.stderr
    assert what in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"  fix: {fix}")
