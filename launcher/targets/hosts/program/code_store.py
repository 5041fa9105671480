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
from launcher.targets.hosts.program.messages import TYPE_CHECKING, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT_ARCHIVES = 4


def _archive(state_dir: str, hash: str) -> str:
    return os.path.join(state_dir, "code", f"{hash}.tar.gz")


def has_code(*, state_dir: str, hash: str) -> bool:
    """Whether the archive is there; marks it as new, so that archives in use are not removed."""
    try:
        os.utime(_archive(state_dir, hash))
    except OSError:
        return False
    return True


def store_code(
    *, state_dir: str, hash: str, archive: bytes, base: str = "", start: int = 0, end: int = 0
) -> bool:
    """Keeps an archive of code by its hash, and removes the oldest ones.

    With a ``base``, the first ``start`` bytes and the last ``end`` bytes are those of the archive
    with that hash. Returns False if that archive is missing or has changed.
    """
    if base:
        try:
            known = Path(_archive(state_dir, base)).read_bytes()
        except OSError:
            return False
        archive = known[:start] + archive + known[len(known) - end :]
        if hashlib.sha256(archive).hexdigest() != hash:
            return False
    path = Path(_archive(state_dir, hash))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, archive)
    kept = sorted(path.parent.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    for old in kept[:-KEPT_ARCHIVES]:
        old.unlink(missing_ok=True)
    return True


def prepare_run(
    *,
    run_dir: str,
    state_dir: str,
    folders: Sequence[str],
    files: Sequence[Sequence[str]],
    agent: bytes,
    code: str | None,
    needed: Sequence[str],
    token: str = "",
) -> None:
    """Makes a run's folder, with ``files`` (path, text), its code by the hash, and the agent.

    Only the user may read the ``token``. Refused if a path of ``needed`` is missing.
    """
    run = Path(run_dir)
    for folder in (run, *map(Path, folders)):
        folder.mkdir(parents=True, exist_ok=True)
    if agent and not (run / protocol.AGENT_ARCHIVE).exists():
        write_atomically(run / protocol.AGENT_ARCHIVE, agent)
    place = run / protocol.CODE_DIR
    if code and not place.exists():
        temporary = run / f".code.{new_number()}"
        with tarfile.open(_archive(state_dir, code)) as archive:
            archive.extractall(temporary)
        with suppress(OSError):
            temporary.rename(place)
        shutil.rmtree(temporary, ignore_errors=True)
    if token:
        write_atomically(run / protocol.TOKEN_FILE, token, mode=0o600)
    for path, text in files:
        write_atomically(Path(path), text.encode("utf-8", "surrogateescape"))
    missing = [path for path in needed if not os.path.exists(path)]
    if missing:
        raise RequestError(f"{missing[0]} is not there")
