"""The training code as one archive: what git tracks and what it does not ignore, as it is now."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.contract.errors import InputError
from launcher.targets import proc

MAX_BYTES = 512 << 20
"""Of all files together: what is larger is data, which belongs into a mount or shared folder."""
GIT_LIMIT_S = 60.0
NOT_CODE = {".git", "__pycache__", ".venv", "venv", "node_modules", "runs", ".mypy_cache"}
"""Left out where there is no git to ask."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """``data`` is a gzipped tar; equal files give an equal ``hash``. ``inner`` is the folder of
    the caller inside it, ``names`` are the files."""

    hash: str
    data: bytes
    inner: str
    names: frozenset[str] = frozenset()


def read_code(folder: Path) -> Code:
    """The git repository around ``folder``, or ``folder`` alone where there is none.

    Uncommitted changes and new files travel, ignored ones do not. Raises ``InputError`` where it
    is too much.
    """
    folder = folder.resolve()
    top = proc.read_bytes(
        ("git", "rev-parse", "--show-toplevel"), cwd=str(folder), timeout_s=GIT_LIMIT_S
    )
    root = Path(os.fsdecode(top.rstrip(b"\n"))) if top else folder
    names = _git_files(root) if top else sorted(_all_files(folder, ""))
    data = pack(root, names)
    inner = folder.relative_to(root).as_posix()
    digest = hashlib.sha256(data).hexdigest()
    inner = "" if inner == "." else inner
    there = frozenset(name for name in names if os.path.lexists(root / name))
    return Code(hash=digest, data=data, inner=inner, names=there)


def pack(root: Path, names: list[str]) -> bytes:
    """A gzipped tar without times and owners. Raises ``InputError`` beyond ``MAX_BYTES``."""
    text = io.BytesIO()
    total = 0
    with (
        # Times change with every checkout, and the hash is to say what the files say.
        gzip.GzipFile(fileobj=text, mode="wb", compresslevel=1, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            path = root / name
            if not (path.is_file() or path.is_symlink()):
                continue  # deleted, and not yet committed so
            info = archive.gettarinfo(str(path), arcname=name)
            total += info.size
            if total > MAX_BYTES:
                raise InputError(
                    f"the code in {root} is more than {MAX_BYTES >> 20} MB, at {name}",
                    "name data in .gitignore; hosts read it from a shared folder",
                )
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            info.mode = 0o755 if info.mode & 0o100 else 0o644
            if info.isreg():
                with path.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    return text.getvalue()


def _git_files(root: Path) -> list[str]:
    argv = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    listed = proc.read_bytes(argv, cwd=str(root), timeout_s=GIT_LIMIT_S) or b""
    return sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})


def _all_files(root: Path, inner: str) -> Iterator[str]:
    for entry in os.scandir(root / inner):
        name = f"{inner}/{entry.name}" if inner else entry.name
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in NOT_CODE:
                yield from _all_files(root, name)
        else:
            yield name
