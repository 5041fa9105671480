"""The code as one archive, in which equal files give equal bytes, and back again."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import posixpath
import tarfile
from collections.abc import Iterable
from pathlib import Path

from launcher.code.files import CodeFile, unreadable


def pack(root: Path, files: Iterable[CodeFile]) -> bytes:
    """A gzipped tar without times and owners, in the order of the files.

    Leaves out links that lead out of the code. Raises ``InputError`` for a
    file that cannot be read.
    """
    packed = io.BytesIO()
    with (
        # Times change with every checkout, and the hash is to say what the files say.
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file in files:
            if file.link is None:
                _add_file(archive, root / file.name, file)
            elif not leads_out(file):
                info = tarfile.TarInfo(file.name)
                info.type, info.linkname = tarfile.SYMTYPE, file.link
                archive.addfile(info)
    return packed.getvalue()


def _add_file(archive: tarfile.TarFile, path: Path, file: CodeFile) -> None:
    try:
        # At once, as the file may change in the meantime.
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreadable(error) from None
    info = tarfile.TarInfo(file.name)
    info.size, info.mode = len(content), 0o755 if file.is_executable else 0o644
    archive.addfile(info, io.BytesIO(content))


def names_in(data: bytes) -> frozenset[str]:
    """The files of an archive."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        return frozenset(archive.getnames())


def hash_of(data: bytes) -> str:
    """What tells one archive from another: 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def leads_out(file: CodeFile) -> bool:
    """Whether it is a symbolic link to what is not part of the code."""
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
