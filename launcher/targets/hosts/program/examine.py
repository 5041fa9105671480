"""What a diagnosis asks of this host beyond what a start needs."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.targets.hosts.program import commands

LOOK_S = 0.1


def read_clock(asked: dict[str, Any]) -> dict[str, Any]:
    """The wall clock, and nothing that takes time: the caller halves the round trip."""
    return {"at": time.time()}


def run_program(asked: dict[str, Any], source: str) -> dict[str, Any]:
    """Runs a program in ``python`` with ``arguments`` and ``env``; what it prints is JSON.

    ``checkpoint_dir`` need not be there yet: it is told the nearest folder that is. Raises
    ``OSError`` where it fails.
    """
    folder = Path(os.path.expanduser(asked["checkpoint_dir"]))
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    env = {**os.environ, **asked["env"], "CHECKPOINT_DIR": str(nearest)}
    python = shutil.which(os.path.expanduser(asked["python"])) or asked["python"]
    argv = (python, "-c", source, *asked["arguments"])
    printed = commands.read_output(argv, asked["wait_s"], env)
    if printed is None:
        raise OSError(f"{python} does not start, or takes longer than {asked['wait_s']:g} s")
    try:
        # Its last line: what people's start-up files print comes before.
        answer = json.loads(printed.splitlines()[-1])
    except (ValueError, IndexError):
        raise OSError(f"{python} says {printed[:80]!r} when it is asked what it is") from None
    return {"answer": answer, "has_folder": nearest == folder}


def read_engine(asked: dict[str, Any]) -> dict[str, Any]:
    """The Docker engine: its version, names of its runtimes, and the image's id and digests.

    Empty strings and lists for what is not there.
    """
    version = commands.read_output(("docker", "version", "--format", "{{.Server.Version}}"))
    runtimes = commands.read_output(("docker", "info", "--format", "{{json .Runtimes}}"))
    fields = "{{.Id}} {{json .RepoDigests}}"
    found = commands.read_output(("docker", "image", "inspect", "--format", fields, asked["image"]))
    id, _, digests = (found or "").partition(" ")
    return {
        "version": (version or "").strip(),
        "runtimes": sorted(json.loads(runtimes or "{}") or {}),
        # Before runtimes had names, --gpus was served by this hook.
        "hook": bool(shutil.which("nvidia-container-runtime-hook")),
        "image_id": id,
        "digests": json.loads(digests or "[]") or [],
    }


class Token:
    """A file in a folder that other hosts may or may not share; gone with the conversation."""

    def __init__(self, folder: str, name: str) -> None:
        """Raises ``OSError`` where nothing can be written there."""
        self.path = Path(os.path.expanduser(folder), name)
        missing = [path for path in self.path.parents if not path.exists()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.made = missing
        self.path.touch()

    def remove(self, *, folders: bool = False) -> None:
        """Takes the file away, and the ``folders`` that were made for it, if empty. Idempotent."""
        with suppress(OSError):
            self.path.unlink()
        for folder in self.made if folders else ():
            with suppress(OSError):
                folder.rmdir()


def read_tokens(asked: dict[str, Any]) -> dict[str, Any]:
    """Which of ``names`` are in ``folder``; waits for all of them, ``wait_s`` at most."""
    folder = os.path.expanduser(asked["folder"])
    deadline = time.monotonic() + asked["wait_s"]
    while True:
        _touch(folder)
        seen = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        found = [name for name in asked["names"] if name in seen]
        if len(found) == len(asked["names"]) or time.monotonic() > deadline:
            return {"seen": found}
        time.sleep(LOOK_S)


def _touch(folder: str) -> None:
    """Makes NFS ask its server: it takes an old list of the folder's files for up to a minute."""
    path = os.path.join(folder, f".launcher-look-{os.getpid()}-{time.monotonic_ns()}")
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.unlink(path)
