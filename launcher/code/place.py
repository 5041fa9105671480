"""Finds the code of a job: which folder it is, and how the command is started inside it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from launcher.code.git import find_repository
from launcher.contract.errors import KeyInputError
from launcher.job.values import IN_IMAGE


@dataclass(frozen=True, kw_only=True)
class CodePlace:
    """``root`` is the folder of the code, absolute; ``inner`` the working folder below it, empty
    for the root itself; ``command`` is what is started there."""

    root: Path
    inner: str = ""
    command: tuple[str, ...]
    note: str = ""
    """What the caller should know about the choice."""
    is_copy: bool = False
    """Whether ``root`` is a copy made for the run, which all nodes use wherever they are."""


def find_code(
    command: tuple[str, ...], code: str | None, workdir: str | None, cwd: Path
) -> CodePlace | None:
    """Where the code of a command is; None if the image holds it.

    ``code`` and ``workdir`` are the job's keys, ``cwd`` is where the launcher was called. Without
    ``code``, a script or module that is not found from there must be in the image. Raises
    ``KeyInputError`` if a folder is named and the script is not in it.
    """
    if code == IN_IMAGE or (code is None and workdir is not None and workdir.startswith("/")):
        return None
    start = Path(os.path.normpath(cwd / (workdir or "")))
    script = _find_script(command, start)
    if script is None and code is None:
        return None
    home = start if script is None else script.parent
    root = _given_root(code, cwd) if code is not None else find_repository(home) or home
    # The folder may be reached by a link: compare what both names lead to.
    root, start = root.resolve(), start.resolve()
    is_elsewhere = False
    if script is not None:
        script = script.parent.resolve() / script.name
        if code is None and command[0] != "-m" and _leads_out(script, root):
            # Python too looks for a script's modules beside the file that a link leads to.
            script, is_elsewhere = script.resolve(), True
            root = (find_repository(script.parent) or script.parent).resolve()
        if not script.is_relative_to(root):
            what = f"found {code}; {script} is not in {root}"
            raise KeyInputError(("code",), what, "name a folder around the script")
    if start.is_relative_to(root):
        if (is_elsewhere or command[0].startswith("/")) and script is not None:
            command = (os.path.relpath(script, start), *command[1:])
        return CodePlace(root=root, inner=_below(start, root), command=command)
    if script is None:
        looked = f"-m finds {command[1]}" if command[0] == "-m" else f"{command[0]} is looked for"
        what = f"found {code}; the current folder, where {looked}, is not in it"
        raise KeyInputError(("code",), what, "cd there, or name a folder around this one")
    note = (
        f"the current folder is not part of the code in {root}: where the code is sent, "
        f"{script.name} starts in its own folder; --code . takes the current folder"
    )
    command = (script.name, *command[1:])
    return CodePlace(root=root, inner=_below(script.parent, root), command=command, note=note)


def _find_script(command: tuple[str, ...], start: Path) -> Path | None:
    """The command's script, or the file or top package of its module; None if it is not there."""
    if command[0] != "-m":
        script = start / command[0]
        return Path(os.path.normpath(script)) if script.exists() else None
    parts = command[1].split(".")
    module = start.joinpath(*parts)
    candidates = module.with_name(f"{parts[-1]}.py"), module
    # The module belongs to the folder that python looks in first, not to its package.
    return start / parts[0] if any(path.exists() for path in candidates) else None


def _leads_out(script: Path, root: Path) -> bool:
    """Whether the script is a link that another machine, or a container, could not follow."""
    if not script.is_symlink():
        return False
    return os.path.isabs(os.readlink(script)) or not script.resolve().is_relative_to(root)


def _given_root(code: str, cwd: Path) -> Path:
    root = cwd / code
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "no such folder"
        fix = f"a folder, or {IN_IMAGE} where the image holds the code"
        raise KeyInputError(("code",), f"found {code}; {what}", fix)
    return root


def _below(folder: Path, root: Path) -> str:
    inner = PurePosixPath(folder.relative_to(root)).as_posix()
    return "" if inner == "." else inner
