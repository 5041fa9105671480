"""The code of one run: read once, sent to the nodes, and kept in the run's folder with its commit
and what is not committed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher.code.archive import common_ends, hash_of, leads_out, names_in, pack
from launcher.code.files import CodeFile, list_files
from launcher.code.git import find_repository, read_git
from launcher.code.place import CodePlace
from launcher.contract.protocol import LATEST_LINK
from launcher.contract.records import read_object

ARCHIVE_FILE = "code.tar.gz"
RECORD_FILE = "code.json"
DIFF_FILE = "code.diff"
_COMPARING = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class CodeRecord:
    """What is known of a run's code. Equal code has an equal ``hash``."""

    root: str
    inner: str
    start: tuple[str, ...]
    """What was started in ``inner``: a script, or ``-m`` and a module."""
    hash: str
    files: int
    bytes: int
    commit: str | None = None
    """None outside of git, and before a first commit."""
    is_dirty: bool = False
    """Whether a file differs from the commit, or is not in it."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """An archive, made of another's first ``start`` bytes, ``data``, and the other's last ``end``.

    ``base`` is the hash of the other archive.
    """

    base: str
    start: int
    end: int
    data: bytes


@dataclass(frozen=True, kw_only=True)
class PackedCode:
    """``data`` is the archive, ``names`` are its files; ``diff`` is what git has not committed.

    ``earlier`` is the folder of an earlier run, whose code may be equal or similar.
    """

    record: CodeRecord
    data: bytes
    names: frozenset[str]
    diff: bytes = b""
    notes: tuple[str, ...] = ()
    earlier: Path | None = None

    @property
    def hash(self) -> str:
        return self.record.hash

    @property
    def change(self) -> Change | None:
        """What differs from the earlier code; None if nothing does, or no earlier code is kept."""
        # Threads of many hosts ask at once, and each comparison needs several times the archive.
        with _COMPARING:
            return self._change

    @functools.cached_property
    def _change(self) -> Change | None:
        record = read_record(self.earlier) if self.earlier else None
        if self.earlier is None or record is None or record.hash == self.hash:
            return None
        try:
            earlier = (self.earlier / ARCHIVE_FILE).read_bytes()
        except OSError:
            return None
        start, end = common_ends(earlier, self.data)
        changed = self.data[start : len(self.data) - end]
        return Change(base=record.hash, start=start, end=end, data=changed)


def read_code(place: CodePlace, run_root: Path) -> PackedCode:
    """Reads and packs the code. Raises ``InputError`` if it is too large, or unreadable."""
    code = pack_code(place, list_files(place.root, run_root))
    commit, is_dirty, diff = _read_commit(place.root)
    record = replace(code.record, commit=commit, is_dirty=is_dirty)
    return replace(code, record=record, diff=diff, earlier=(run_root / LATEST_LINK).resolve())


def pack_code(place: CodePlace, files: list[CodeFile]) -> PackedCode:
    """Packs these files as the code. Raises ``InputError`` for one that cannot be read."""
    data = pack(place.root, files)
    out = filter(leads_out, files)
    notes = [f"{file.name} leads to {file.link}, which is no part of the code" for file in out]
    record = CodeRecord(
        root=str(place.root),
        inner=place.inner,
        start=place.command[: 2 if place.command[0] == "-m" else 1],
        hash=hash_of(data),
        files=len(files),
        bytes=sum(file.size for file in files),
    )
    return PackedCode(
        record=record,
        data=data,
        names=frozenset(file.name for file in files),
        notes=tuple(notes),
    )


def _read_commit(root: Path) -> tuple[str | None, bool, bytes]:
    if find_repository(root) is None:
        return None, False, b""
    head = read_git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if not head:
        return None, True, b""
    # --no-ext-diff, --no-textconv: no program that the repository names.
    diff = read_git(root, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD") or b""
    new = read_git(root, "ls-files", "--others", "--exclude-standard")
    return head.decode().strip(), bool(diff or new), diff


def write_code(folder: Path, code: PackedCode) -> None:
    """Keeps the code in a run's folder. An equal archive of an earlier run is linked."""
    (folder / RECORD_FILE).write_text(json.dumps(asdict(code.record), indent=2) + "\n")
    if code.diff:
        (folder / DIFF_FILE).write_bytes(code.diff)
    archive = folder / ARCHIVE_FILE
    if code.earlier and (known := read_record(code.earlier)) and known.hash == code.hash:
        with contextlib.suppress(OSError):
            os.link(code.earlier / ARCHIVE_FILE, archive)
            return
    archive.write_bytes(code.data)


def read_record(folder: Path) -> CodeRecord | None:
    """What a run's folder says of its code; None if it says nothing readable."""
    try:
        fields = read_object(folder / RECORD_FILE)
        return CodeRecord(**{**fields, "start": tuple(fields["start"])})
    except (TypeError, KeyError):
        return None


def read_kept_code(folder: Path) -> PackedCode | None:
    """The code that a run's folder keeps; None if it keeps none, or none that fits its record."""
    record = read_record(folder)
    try:
        data = (folder / ARCHIVE_FILE).read_bytes()
    except OSError:
        return None
    if record is None or hash_of(data) != record.hash:
        return None
    diff = folder / DIFF_FILE
    return PackedCode(
        record=record,
        data=data,
        names=names_in(data),
        diff=diff.read_bytes() if diff.exists() else b"",
        earlier=folder,
    )
