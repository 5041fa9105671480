"""``launcher build`` on a real engine: what is in an image, what is reused, and what is refused."""

import contextlib
import io
import signal
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

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


def test_ctrl_c_ends_the_build_in_the_engine_and_all_that_the_client_runs(
    launcher, folder, tag, engine
):
    with tarfile.open(folder.parent / "wheels/slow-1.0.tar.gz", "w:gz") as archive:
        project = '[build-system]\nrequires = []\nbuild-backend = "back"\nbackend-path = ["."]\n'
        for name, text in (("pyproject.toml", project), ("back.py", SLOW), ("PKG-INFO", "")):
            info = tarfile.TarInfo(f"slow-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    (folder / "requirements.txt").write_text(f"slow\n# {tag}\n")
    # As one whose plugin builds, in a program of its own.
    put_client(launcher, f'exec 3<&0\n{find_client()[0]} "$@" <&3 &\nwait $!\n')
    words = ("build", "train.py", "--base", BASE, "--tag", tag, "--wheelhouse", "../wheels")
    process = launcher.start(*words)
    assert process.stderr is not None
    while b"slow-1.0.tar.gz" not in (line := process.stderr.readline()):
        assert line, "the build ended"
    assert steps()
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"interrupted; nothing was left running" in said
    wait_until(lambda: not steps())
    wait_until(lambda: not any(child.is_running() for child in children))
    assert engine.images.list(name=tag) == []


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
