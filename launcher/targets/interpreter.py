"""Which Python of this machine runs nodes: the one that the job names, else one that has torch; and
torch's version."""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import shutil
import sys
from pathlib import Path

from launcher.contract.errors import KeyInputError, TargetError
from launcher.targets.subprocesses import short_command

READ_VERSION = """
from importlib import metadata
print(next((found.version for found in metadata.distributions(name="torch")), ""))
"""


def find_python(given: str) -> str:
    """The path of the interpreter that a job names. Raises ``KeyInputError`` if it is missing."""
    path = str(Path.cwd() / given) if "/" in given else shutil.which(given)
    if path is None or not os.path.isfile(path):
        where = "no such file" if "/" in given else "not on PATH"
        fix = "correct the path, or leave it out: the launcher then takes one that has torch"
        raise KeyInputError(("local", "python"), f"found {given}; {where}", fix)
    if not os.access(path, os.X_OK):
        fix = f"chmod +x {path}, or name an interpreter"
        raise KeyInputError(("local", "python"), f"found {given}; it is not executable", fix)
    return path


def find_torch(given: str | None) -> tuple[str, str]:
    """The nodes' interpreter and its torch version: the given one, or else this one or PATH's.

    If the launcher is installed by itself, as by pipx, PATH has the person's own Python. Raises
    ``TargetError`` if there is no torch.
    """
    python = find_python(given) if given else sys.executable
    try:
        return python, read_torch_version(python)
    except TargetError:
        system_python = None if given else shutil.which("python3")
        if system_python is None or system_python == python:
            raise
        with contextlib.suppress(TargetError):
            return system_python, read_torch_version(system_python)
        raise


def read_torch_version(python: str) -> str:
    """The version of an interpreter's torch. Raises ``TargetError`` if it has none."""
    if python == sys.executable:
        if len(folders := _find_metadata()) == 1:
            return folders[0].removeprefix("torch-").removesuffix(".dist-info")
        from importlib import metadata

        try:
            return metadata.version("torch")
        except metadata.PackageNotFoundError:
            version = None
    else:
        version = short_command.read_output((python, "-c", READ_VERSION), timeout_s=20)
        if version is None:
            what = f"{python} does not run here as a Python interpreter"
            raise TargetError(what, "name one: --set local.python=PATH")
    if not version or not version.strip():
        raise TargetError(
            f"{python} has no torch, so no training can run on local processes",
            f"{shlex.quote(python)} -m pip install torch; or name another interpreter: "
            "--set local.python=PATH",
        )
    return version.strip()


def _find_metadata() -> list[str]:
    """The metadata folders of this interpreter's torch, whose names hold the version.

    Reading the metadata itself takes as long as planning a run.
    """
    for path in sys.path:
        with contextlib.suppress(OSError):
            if folders := glob.glob("torch-*.dist-info", root_dir=path or "."):
                return folders
    return []
