"""Checks before the start: are the job's secrets, folder, script or module there?"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from launcher.code.files import NOT_CODE
from launcher.contract.did_you_mean import closest
from launcher.contract.errors import KeyInputError
from launcher.contract.node_plan import NodePlan

if TYPE_CHECKING:
    from launcher.code.record import PackedCode

MAX_FOLDERS = 2000
"""How many are searched for a module that is not where it was looked for."""


def read_secrets(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The secrets' values. Raises ``KeyInputError`` naming those that are not set. Pure."""
    missing = [name for name in names if name not in environ]
    if missing:
        raise KeyInputError(
            ("secrets",),
            f"{', '.join(missing)} not set in this environment",
            f"export {missing[0]}=... before the launcher is called, or take it out of the job",
        )
    return {name: environ[name] for name in names}


def check_here(node: NodePlan, python: str) -> None:
    """Checks the folder, script or module of local processes. Raises ``KeyInputError``."""
    workdir = Path(node.workdir or ".")
    if not workdir.is_dir():
        what = "is not a folder" if workdir.exists() else "is not there"
        fix = f"mkdir -p {workdir}, or correct workdir (relative to where the launcher is called)"
        raise KeyInputError(("workdir",), f"{workdir} {what}", fix)
    if not os.access(workdir, os.X_OK):
        raise KeyInputError(("workdir",), f"{workdir}: Permission denied", f"chmod +x {workdir}")
    if node.command[0] != "-m":
        _check_file(workdir / node.command[0], node.command[0], f"in {workdir}")
    elif python == sys.executable and not _finds_module(node, str(workdir)):
        raise KeyInputError(
            ("command",),
            f"found -m {node.command[1]}; {python} finds no such module in {workdir}",
            _fix_module(node.command[1], workdir, Path.cwd()),
        )


def check_in_mounts(node: NodePlan, workdir: str | None) -> None:
    """Checks the script of a container if it lies in a mount, which is on this machine too.

    ``workdir`` is where the container starts, None if that is unknown. Raises ``KeyInputError``.
    """
    script = PurePosixPath(node.command[0])
    if node.command[0] == "-m" or (workdir is None and not script.is_absolute()):
        return
    inside = PurePosixPath(os.path.normpath(PurePosixPath(workdir or "/") / script))
    holding = [mount for mount in node.mounts if inside.is_relative_to(mount.target)]
    if not holding:
        return  # in the image: only a container can tell
    mount = max(holding, key=lambda one: len(one.target))
    outside = Path(mount.source) / inside.relative_to(mount.target)
    # A link may lead to a place that only the container has.
    if not any(path.is_symlink() for path in (outside, *outside.parents)):
        _check_file(outside, node.command[0], f"at {outside}, which is {inside} in the container")


def check_in_code(code: PackedCode) -> None:
    """Checks the script of nodes that get the code sent. Raises ``KeyInputError``."""
    names, script = code.names, code.record.start[0]
    inside = PurePosixPath(os.path.normpath(PurePosixPath(code.record.inner) / script))
    if script == "-m" or inside.is_absolute():
        return
    known = {*names, *(f"{parent}" for name in names for parent in PurePosixPath(name).parents)}
    # A parent that is a file of the archive is a link, which may lead anywhere.
    if str(inside) in known or any(str(parent) in names for parent in inside.parents):
        return
    close = _close(inside.name, (PurePosixPath(name).name for name in names))
    fix = close or "check the path; what git ignores is not sent (git check-ignore -v FILE)"
    raise KeyInputError(
        ("command",), f"found {script}; no {inside} in the code that nodes get", fix
    )


def check_there(node: NodePlan, run_dir: str) -> None:
    """Checks that nodes which get no code, and have no image, do not look for a script in the
    run's own folder on their machine. Raises ``KeyInputError``."""
    script = PurePosixPath(node.workdir or run_dir, node.command[0])
    if node.command[0] != "-m" and script.is_relative_to(run_dir):
        _check_file(Path(script.relative_to(run_dir)), node.command[0], f"in {Path.cwd()}")


def _check_file(path: Path, written: str, where: str) -> None:
    if path.is_dir() and not (path / "__main__.py").exists():
        fix = "name the script in it, or write a __main__.py"
        raise KeyInputError(("command",), f"found {written}; a folder without __main__.py", fix)
    if not path.exists():
        try:
            names = [entry.name for entry in path.parent.iterdir()]
        except OSError:
            names = []
        fix = _close(path.name, names) or "check the path; it is relative to workdir"
        raise KeyInputError(("command",), f"found {written}; no such file {where}", fix)
    if not os.access(path, os.R_OK):
        raise KeyInputError(
            ("command",), f"found {written}; {path}: Permission denied", f"chmod +r {path}"
        )


def _close(name: str, names: Iterable[str]) -> str:
    found = closest(name, sorted(set(names)))
    return f"did you mean {found}?" if found else ""


# -- modules --------------------------------------------------------------------------------------


def _finds_module(node: NodePlan, workdir: str) -> bool:
    """Whether this Python finds the node's module in that folder; True where it cannot tell.

    Nothing is imported: a package's own code may take seconds, or start a GPU.
    """
    paths = [path for path in dict(node.env).get("PYTHONPATH", "").split(os.pathsep) if path]
    top, *parts = node.command[1].split(".")
    # Other finders have built-in modules, and packages that are installed as links.
    found = (finder.find_spec(top, None) for finder in sys.meta_path)
    spec = PathFinder.find_spec(top, [workdir, *paths, *sys.path]) or next(
        filter(None, found), None
    )
    for part in (*parts, "__main__"):
        if spec is None:
            return False
        if spec.submodule_search_locations is None:
            return part == "__main__"
        if _decides_itself(spec):
            return True
        # By its last name alone: of a dotted one, PathFinder wants the parents imported.
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec is not None


def _decides_itself(package: ModuleSpec) -> bool:
    """Whether a package says by code where its modules are."""
    try:
        return "__path__" in Path(package.origin or "").read_text(errors="replace")
    except OSError:
        return package.origin is not None


def _fix_module(name: str, workdir: Path, cwd: Path) -> str:
    if name.endswith(".py"):
        return f"a script is named without -m: [{name}]"
    if (workdir / name.replace(".", "/")).is_dir():
        return f"write {name}/__main__.py, or name a module in it"
    if home := next(_find_homes(name, workdir), None):
        if cwd.resolve() == workdir.resolve():
            return f"cd {shlex.quote(os.path.relpath(home, cwd))}; -m starts at the current folder"
        return f"workdir: {os.path.relpath(home, cwd)}"
    return "check the name; cd to the folder that holds it, or install it for that interpreter"


def _find_homes(name: str, workdir: Path) -> Iterator[Path]:
    """Folders below, at most two levels, from which ``python -m name`` would find it."""
    inner = name.replace(".", "/")
    folders = (path for level in ("*/", "*/*/") for path in workdir.glob(level))
    for folder in itertools.islice(folders, MAX_FOLDERS):
        parts = folder.relative_to(workdir).parts
        if any(part.startswith(".") or part in NOT_CODE for part in parts):
            continue
        if any((folder / file).is_file() for file in (f"{inner}.py", f"{inner}/__main__.py")):
            yield folder
