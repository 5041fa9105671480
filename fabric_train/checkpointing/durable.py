"""Files that are complete or absent, even after a kill or a power cut.

``fabric.save`` cannot promise that: it stages in the temporary folder, moves across devices and
does not sync the bytes to the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

STAGING_PREFIX = ".staging-"
"""Starts the name of a file or folder that is being written or deleted; readers skip it."""


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replaces ``path`` with what ``write`` puts into the file it is given; blocks on the disk.

    A reader sees the old bytes or the new ones, never a mixture.
    """
    staging = staging_path(path)
    try:
        write_synced(staging, write)
        os.replace(staging, path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_synced(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a file of a staged folder, and waits until it is on the disk."""
    with path.open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def remove_folder(path: Path) -> None:
    """Renames a folder, then deletes it, so that nobody sees half of it; it may be absent."""
    doomed = staging_path(path)
    try:
        os.rename(path, doomed)
    except FileNotFoundError:
        return
    shutil.rmtree(doomed)


@contextlib.contextmanager
def reading(path: Path, fix: str) -> Iterator[None]:
    """Makes an OSError say what could not be read, and what to do: a failed read names no file."""
    try:
        yield
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror}; {fix}"
        raise OSError(error.errno, text) from error


def staging_path(path: Path) -> Path:
    """A new name beside ``path``: a rename is atomic only within one file system."""
    return path.with_name(f"{STAGING_PREFIX}{path.name}-{uuid.uuid4().hex}")


def sync_folder(folder: Path) -> None:
    """Waits until the names in ``folder`` are on the disk; a rename alone does not.

    Does nothing on a file system that cannot sync a folder, such as 9p and older CIFS.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
