"""Checks before the start: secrets, folder and script; which shell variables nodes do not get;
checkpoints on each node's own disk."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from launcher.contract.errors import KeyInputError, closest
from launcher.contract.node_plan import NodePlan
from launcher.job.values import RESERVED
from launcher.plan.rendezvous import needs_majority

if TYPE_CHECKING:
    from launcher.code.record import PackedCode
    from launcher.job.spec import JobSpec

OF_MACHINE = (
    "^(HOME|HOSTNAME|LANG|LOGNAME|PATH|PWD|SHELL|TERM|TMPDIR|USER|CUDA_VISIBLE_DEVICES|SLURM_.*)$"
)
"""Variables that each machine, container or job has for itself."""
HUGGING_FACE = ("HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE")
OF_LIBRARIES = {
    "wandb": ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"),
    **dict.fromkeys(("datasets", "huggingface_hub", "transformers"), HUGGING_FACE),
}
"""Variables that a library reads for the script that imports it."""

OF_LIBRARY = re.compile(r"^\s*(?:from|import)\s+fabric_train\b", re.MULTILINE)


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


def read_script(command: Sequence[str], workdir: Path) -> str:
    """The source of a job's script or module; empty where it is not there, or no text of Python."""
    base = workdir / (command[1].replace(".", "/") if command[0] == "-m" else command[0])
    for path in (base, base / "__main__.py", Path(f"{base}.py")):
        if path.suffix == ".py" and path.is_file():
            with contextlib.suppress(OSError):
                return path.read_text("utf-8", "replace")
    return ""


def describe_left_behind(
    source: str, environ: Mapping[str, str], given: Iterable[str]
) -> str | None:
    """One line on the shell's variables that a script asks for and nodes do not get, if any.

    It asks for what its ``source`` names, for PYTHONPATH if it imports something from there, and
    for the variables of the libraries in ``OF_LIBRARIES`` that it imports. ``given`` are the names
    that nodes have.
    """
    imported = set(re.findall(r"^\s*(?:from|import)\s+(\w+)", source, re.MULTILINE))
    named = set(re.findall(r"[\"']([A-Z][A-Z0-9_]{2,})[\"']", source))
    named |= {name for library in imported for name in OF_LIBRARIES.get(library, ())}
    folders = [Path(entry) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if any(
        (folder / f"{name}{end}").exists()
        for folder in folders
        for name in imported
        for end in ("", ".py")
    ):
        named.add("PYTHONPATH")
    of_machine = re.compile(f"{OF_MACHINE}|{RESERVED}")
    names = sorted(n for n in named & environ.keys() - set(given) if not of_machine.search(n))
    if not names:
        return None
    is_folder = any(environ[name].startswith("/") for name in names)
    what = f"the script asks for {', '.join(names)}, which this shell has and the nodes do not get"
    fix = " ".join(f"--env {name}" for name in names)
    return f"{what}; fix: {fix}{'; a folder must be there too' if is_folder else ''}"


def check_own_disks(job: JobSpec, source: str) -> str | None:
    """One line for a run of several nodes whose CHECKPOINT_DIR is each node's own disk.

    None if that is meant, and for ``fabric_train``, which reads on rank 0 and tells the others.
    Raises ``KeyInputError`` where the script would resume on each rank for itself.
    """
    is_shipped = job.command[:2] == ("-m", "train") and not source  # in its image
    if job.keeps_own_disks or is_shipped or OF_LIBRARY.search(source):
        return None
    what = "CHECKPOINT_DIR is each node's own disk"
    fix = "a folder that all nodes see, or ephemeral if that is meant"
    if "CHECKPOINT_DIR" in source and (job.is_elastic or job.max_restarts):
        why = f"nnodes is {job.nnodes}" if job.is_elastic else f"max_restarts is {job.max_restarts}"
        lost = "after a loss ranks would resume from different steps"
        raise KeyInputError(("checkpoint_dir",), f"{what}, and {why}: {lost}", fix)
    return f"{what}: a rank finds there what its own node wrote; fix: checkpoint_dir: {fix}"


def describe_minority(node: NodePlan) -> str | None:
    """One line for a run whose nodes would wait after some losses that ``nnodes`` allows."""
    if not needs_majority(node, node.min_nodes):
        return None
    return (
        "no folder for checkpoints is shared: after a loss the other nodes go on only if they are "
        "more than half of the last group; fix: checkpoint_dir: a folder that all nodes see"
    )


def check_here(node: NodePlan) -> None:
    """Checks the folder and the script of local processes. Raises ``KeyInputError``."""
    workdir = Path(node.workdir or ".")
    if not workdir.is_dir():
        what = "is not a folder" if workdir.exists() else "is not there"
        fix = f"mkdir -p {workdir}, or correct workdir (relative to where the launcher is called)"
        raise KeyInputError(("workdir",), f"{workdir} {what}", fix)
    if not os.access(workdir, os.X_OK):
        raise KeyInputError(("workdir",), f"{workdir}: Permission denied", f"chmod +x {workdir}")
    check_script(node.command, workdir)


def check_script(command: Sequence[str], workdir: Path) -> None:
    """Checks the script that is started in a folder here. Raises ``KeyInputError``.

    A module (``-m``) is not checked: only Python can find it, as a package's code may say where
    its modules are.
    """
    if command[0] != "-m":
        _check_file(workdir / command[0], command[0], f"in {workdir}")


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
    """Checks the script of nodes that get no code and have no image, if its path leads into the
    run's own folder. Raises ``KeyInputError``."""
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
    close = closest(name, sorted(set(names)))
    return f"did you mean {close}?" if close else ""
