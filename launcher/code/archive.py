"""Packs the code as one archive, in which equal files give equal bytes; leaves out links that lead
out of the code."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import posixpath
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path

from launcher.code.files import CodeFile, unreadable

LARGE_BYTES = 1 << 18
"""A file of this size or larger is a part of the archive by itself."""
FILES_PER_PART = 16
"""How many smaller files share a part, on average."""


def pack(root: Path, files: Iterable[CodeFile]) -> bytes:
    """A gzipped tar without times and owners, in the order of the files.

    It is gzipped in parts that begin at the same files each time, so that a changed file changes
    the bytes of its own part alone. Leaves out links that lead out of the code. Raises
    ``InputError`` for a file that cannot be read.
    """
    parts, part, was_large = [], list[bytes](), False
    for file in files:
        is_large = file.size >= LARGE_BYTES
        if is_large or was_large or zlib.crc32(os.fsencode(file.name)) % FILES_PER_PART == 0:
            parts.append(b"".join(part))
            part = []
        part.append(_entry(root / file.name, file))
        was_large = is_large
    parts.append(b"".join((*part, bytes(2 * tarfile.BLOCKSIZE))))
    # Without a time, so that the hash depends on the files alone.
    return b"".join(gzip.compress(chunk, 1, mtime=0) for chunk in parts if chunk)


def _entry(path: Path, file: CodeFile) -> bytes:
    """The bytes of one file in the tar; empty if it is left out."""
    info = tarfile.TarInfo(file.name)
    content = b""
    if file.link is not None:
        if leads_out(file):
            return b""
        info.type, info.linkname = tarfile.SYMTYPE, file.link
    else:
        try:
            # All at once, as the file may change meanwhile.
            content = path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise unreadable(error) from None
        info.size, info.mode = len(content), 0o755 if file.is_executable else 0o644
    header = info.tobuf(tarfile.PAX_FORMAT, tarfile.ENCODING, "surrogateescape")
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def common_ends(old: bytes, new: bytes) -> tuple[int, int]:
    """How many bytes two archives have in common at their start, and after that at their end."""
    start = _common(old, new)
    return start, _common(old[start:][::-1], new[start:][::-1])


def _common(old: bytes, new: bytes) -> int:
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if old[low:middle] == new[low:middle] else (low, middle - 1)
    return low


def names_in(data: bytes) -> frozenset[str]:
    """The files of an archive."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        return frozenset(archive.getnames())


def hash_of(data: bytes) -> str:
    """Identifies an archive: 64 hexadecimal digits of SHA-256."""
    return hashlib.sha256(data).hexdigest()


def leads_out(file: CodeFile) -> bool:
    """Whether the file is a symbolic link that leads out of the code."""
    if file.link is None:
        return False
    target = posixpath.normpath(posixpath.join(posixpath.dirname(file.name), file.link))
    return os.path.isabs(file.link) or target == ".." or target.startswith("../")


def unpack(data: bytes, folder: Path) -> None:
    """Writes what ``pack`` packed into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        # Python 3.11.2 of Debian 12 has no filters yet.
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **safe)  # type: ignore[arg-type]
