"""Lists the files of the code: what neither git nor .launcherignore ignores. Refuses too many files
or bytes."""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from launcher.code.git import find_repository, read_git
from launcher.contract import protocol
from launcher.contract.errors import InputError
from launcher.yamlfile.problem import render_value

MAX_BYTES = 100 << 20
"""Limit of all files together: more is data, which belongs into a mount or shared folder."""
MAX_FILES = 20_000
LARGEST = 5
"""How many files are named if the code is too large."""
IGNORE_FILE = ".launcherignore"
"""In the folder of the code; written as a ``.gitignore`` is."""
NOT_CODE = frozenset(
    {".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache"}
)
"""Folders that are left out if there is no git to ask."""
OF_A_RUN = (protocol.PLAN_FILE, protocol.ARTIFACT_FILE)
"""A folder that has both was made by a launcher for a run: they are written together."""
FIX = (
    f"name data in {IGNORE_FILE} (written as a .gitignore); nodes find it in a shared folder, a "
    "mount, or on Kubernetes a claim (kubernetes.volumes: [pvc/CLAIM:/data])"
)


class CodeFile(NamedTuple):
    """``name`` is relative to the code's folder; ``link`` is where a symbolic link leads."""

    name: str
    size: int
    link: str | None
    is_executable: bool


def list_files(root: Path, run_root: Path) -> list[CodeFile]:
    """The files of the code by name. Nothing is read but names and sizes.

    Left out are ``run_root`` and every folder of a run, whoever started it. Raises ``InputError``
    beyond ``MAX_BYTES`` or ``MAX_FILES``, or for what cannot be read.
    """
    ignored = _read_ignore_file(root)
    runs = os.path.realpath(run_root)  # as the root is, without symbolic links
    files: list[CodeFile] = []
    try:
        for name in _names(root, ignored, runs):
            if (file := _describe(root, name)) is not None:
                files.append(file)
            if len(files) > MAX_FILES:
                raise InputError(f"the code in {root} is more than {MAX_FILES:,} files", FIX)
    except PermissionError as error:
        raise unreadable(error) from None
    total = sum(file.size for file in files)
    if total > MAX_BYTES:
        largest = sorted(files, key=lambda file: -file.size)[:LARGEST]
        named = "".join(f"\n  {_megabytes(file.size):>7}  {file.name}" for file in largest)
        what = f"the code in {root} is {_megabytes(total)}, more than {_megabytes(MAX_BYTES)}"
        raise InputError(f"{what}; the largest files:{named}", FIX)
    return sorted(files)


def _megabytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _names(root: Path, ignored: GitIgnoreSpec | None, runs: str) -> Iterator[str]:
    @functools.cache
    def is_run(name: str) -> bool:
        """Whether ``name`` is a folder of runs or of a run, a link to one, or inside of one."""
        path = os.path.join(root, name)
        is_one = path == runs or all(os.path.isfile(f"{path}/{of_run}") for of_run in OF_A_RUN)
        return bool(name) and (is_one or is_run(os.path.dirname(name)))

    in_git = find_repository(root)
    for name in _git_names(root, "") if in_git else _all_names(root, "", ignored, is_run):
        if not is_run(name) and not (ignored and ignored.match_file(name)):
            yield name


def _git_names(root: Path, inner: str) -> Iterator[str]:
    """Tracked files and new ones, also of submodules and of repositories inside."""
    words = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    folder = root / inner
    listed = read_git(folder, *words)
    if listed is None:
        raise InputError(f"git ls-files fails in {folder}", f"git -C {folder} status")
    for name in sorted({os.fsdecode(name) for name in listed.split(b"\0") if name}):
        path = f"{inner}{name}".rstrip("/")
        if not os.path.isdir(root / path) or os.path.islink(root / path):
            yield path
        elif os.path.lexists(root / path / ".git"):
            yield from _git_names(root, f"{path}/")


def _all_names(
    root: Path, inner: str, ignored: GitIgnoreSpec | None, is_run: Callable[[str], bool]
) -> Iterator[str]:
    for entry in sorted(os.scandir(root / inner), key=lambda entry: entry.name):
        name = f"{inner}{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            yield name
        elif (
            entry.name not in NOT_CODE
            and not is_run(name)
            and not (ignored and ignored.match_file(f"{name}/"))
        ):
            yield from _all_names(root, f"{name}/", ignored, is_run)


def _describe(root: Path, name: str) -> CodeFile | None:
    """None for a deleted file that git still lists, and for sockets and devices."""
    path = root / name
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(status.st_mode):
        return CodeFile(name, 0, os.readlink(path), False)
    if not stat.S_ISREG(status.st_mode):
        return None
    return CodeFile(name, status.st_size, None, bool(status.st_mode & 0o100))


def unreadable(error: OSError) -> InputError:
    """The error for a file or folder of the code that cannot be read."""
    return InputError(
        f"{error.filename} is part of the code and cannot be read: {error.strerror}",
        f"chmod +r {error.filename}, or name it in {IGNORE_FILE}",
    )


def _read_ignore_file(root: Path) -> GitIgnoreSpec | None:
    path = root / IGNORE_FILE
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    try:
        return GitIgnoreSpec.from_lines(lines)
    except (ValueError, re.error) as error:
        fix = "write it as in a .gitignore; folders end in /"
        raise InputError(f"{path}: {render_value(str(error))}", fix) from None
