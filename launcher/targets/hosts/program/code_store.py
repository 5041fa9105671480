"""The code of runs as this host keeps it: archives by hash, and a run's folder made of one."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path

from launcher.agent.atomic_write import new_number, write_atomically
from launcher.contract import protocol
from launcher.targets.hosts.program.messages import (
    HasCode,
    PrepareRun,
    RequestError,
    StoreCode,
)

KEPT_ARCHIVES = 4


def _archive(state_dir: str, hash: str) -> str:
    return os.path.join(state_dir, "code", f"{hash}.tar.gz")


def has_code(asked: HasCode) -> bool:
    """Whether the archive is there; marks it as new, so that archives in use are not removed."""
    try:
        os.utime(_archive(asked.state_dir, asked.hash))
    except OSError:
        return False
    return True


def store_code(asked: StoreCode, archive: bytes) -> bool:
    """Keeps an archive of code by its hash, and removes the oldest ones."""
    if asked.base:
        try:
            base = Path(_archive(asked.state_dir, asked.base)).read_bytes()
        except OSError:
            return False
        archive = base[: asked.start] + archive + base[len(base) - asked.end :]
        if hashlib.sha256(archive).hexdigest() != asked.hash:
            return False
    path = Path(_archive(asked.state_dir, asked.hash))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, archive)
    kept = sorted(path.parent.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    for old in kept[:-KEPT_ARCHIVES]:
        old.unlink(missing_ok=True)
    return True


def prepare_run(asked: PrepareRun, agent: bytes) -> None:
    run_dir = Path(asked.run_dir)
    for folder in (run_dir, *map(Path, asked.folders)):
        folder.mkdir(parents=True, exist_ok=True)
    if asked.agent and not Path(asked.agent).exists():
        write_atomically(Path(asked.agent), agent)
    code = run_dir / protocol.CODE_DIR
    if asked.code and not code.exists():
        archive = Path(_archive(asked.state_dir, asked.code))
        temporary = run_dir / f".code.{new_number()}"
        with tarfile.open(archive) as files:
            files.extractall(temporary)
        with suppress(OSError):
            temporary.rename(code)
        shutil.rmtree(temporary, ignore_errors=True)
    if asked.token:
        write_atomically(run_dir / protocol.TOKEN_FILE, asked.token, mode=0o600)
    for path, text in asked.files:
        write_atomically(Path(path), text.encode("utf-8", "surrogateescape"))
    missing = [path for path in asked.needed if not os.path.exists(path)]
    if missing:
        raise RequestError(f"{missing[0]} is not there")
