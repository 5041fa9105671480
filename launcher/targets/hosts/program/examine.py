"""What ``doctor`` asks of this host beyond what a start needs."""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from launcher.targets.hosts.program import commands
from launcher.targets.hosts.program.messages import (
    EngineFacts,
    FindTokens,
    ProbeResult,
    ReadEngine,
    RunProbe,
    TokensFound,
)

LOOK_S = 0.1


def run_program(asked: RunProbe, source: str) -> ProbeResult:
    """Runs a Python program. Raises ``OSError`` where it fails."""
    folder = Path(os.path.expanduser(asked.checkpoint_dir))
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    env = {**os.environ, **asked.env, "CHECKPOINT_DIR": str(nearest)}
    python = shutil.which(os.path.expanduser(asked.python)) or asked.python
    argv = (python, "-c", source, *asked.arguments)
    printed = commands.read_output(argv, asked.wait_s, env)
    if printed is None:
        raise OSError(f"{python} does not start, or takes longer than {asked.wait_s:g} s")
    try:
        # The last line: start-up files of the user may print others before.
        answer = json.loads(printed.splitlines()[-1])
    except (ValueError, IndexError):
        raise OSError(f"{python} says {printed[:80]!r} when it is asked what it is") from None
    return ProbeResult(answer=answer, has_folder=nearest == folder)


def read_engine(asked: ReadEngine) -> EngineFacts:
    """The Docker engine: its version, names of its runtimes, and the image's id and digests."""
    version = commands.read_output(("docker", "version", "--format", "{{.Server.Version}}"))
    runtimes = commands.read_output(("docker", "info", "--format", "{{json .Runtimes}}"))
    fields = "{{.Id}} {{json .RepoDigests}}"
    found = commands.read_output(("docker", "image", "inspect", "--format", fields, asked.image))
    id, _, digests = (found or "").partition(" ")
    return EngineFacts(
        version=(version or "").strip(),
        runtimes=sorted(json.loads(runtimes or "{}") or {}),
        hook=bool(shutil.which("nvidia-container-runtime-hook")),
        image_id=id,
        digests=json.loads(digests or "[]") or [],
    )


class Token:
    """A file in a folder that other hosts may share; removed with the conversation."""

    def __init__(self, folder: str, name: str) -> None:
        """Raises ``OSError`` where nothing can be written there."""
        self.path = Path(os.path.expanduser(folder), name)
        missing = [path for path in self.path.parents if not path.exists()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.made = missing
        self.path.touch()

    def remove(self, *, folders: bool = False) -> None:
        """Removes the file, and empty ``folders`` that were made for it. Idempotent."""
        with suppress(OSError):
            self.path.unlink()
        for folder in self.made if folders else ():
            with suppress(OSError):
                folder.rmdir()


def find_tokens(asked: FindTokens) -> TokensFound:
    """Looks for tokens until all are there, or the time is over."""
    folder = os.path.expanduser(asked.folder)
    deadline = time.monotonic() + asked.wait_s
    while True:
        _touch(folder)
        seen = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        found = [name for name in asked.names if name in seen]
        if len(found) == len(asked.names) or time.monotonic() > deadline:
            return TokensFound(names=found)
        time.sleep(LOOK_S)


def _touch(folder: str) -> None:
    """Makes NFS ask its server: its list of the folder's files may be a minute old."""
    path = os.path.join(folder, f".launcher-look-{os.getpid()}-{time.monotonic_ns()}")
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.unlink(path)
