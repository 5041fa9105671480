"""Run folders: what a run leaves in ``runs/<run id>/``, which run ``latest`` or an id means, and
whether its launcher still lives.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from launcher.agent import disk
from launcher.agent.atomic_write import (
    write_atomically as write_atomically,  # for those who write here
)
from launcher.contract import generations, protocol, typed
from launcher.contract.causes import with_cause
from launcher.contract.ending import NodeOutcome, parse_node_outcome
from launcher.contract.errors import DiskFullError, InputError, LauncherError
from launcher.contract.process_stat import boot_id, lives, name_machine, start_of
from launcher.contract.records import parse_object, parse_record, read_limited, read_object
from launcher.plan.launch_plan import LaunchPlan, parse_plan
from launcher.plan.torchrun import WORKER_FOLDERS, WorkerLog, parse_worker_folder
from launcher.runs.outcome import Outcome

LAUNCHER_FILE = "launcher.json"
"""Which launcher follows the run: its pid, and when that process started."""
SUBMITTED_FILE = "submitted.json"
"""When the run was submitted: ``{"at": seconds since the epoch}``."""
BORROWED_FILE = "borrowed"
"""Marks the temporary folder of a run that somebody else submitted; it lasts for one command."""


class RunFolder:
    """One run's folder on the launcher's machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        return self.path.name

    def create(
        self,
        plan: LaunchPlan,
        script: str,
        at: float,
        fill: Callable[[Path], None] | None = None,
        *,
        follows: bool = False,
    ) -> None:
        """Makes the folder with the plan and the artifact, and points ``latest`` at it.

        ``at`` is the time of submission, seconds since the epoch; ``fill`` writes what else belongs
        into the folder; ``follows``: this process will follow the run. Raises ``DiskFullError``.
        After an error, and Ctrl-C, no folder is left.
        """
        make_folders((str(self.path),))
        try:
            write_atomically(self.path / SUBMITTED_FILE, json.dumps({"at": at}))
            if follows:
                # Before the plan: a plan without a launcher looks like a dead run.
                self.write_launcher()
            self.write_plan(plan, script)
            if fill is not None:
                fill(self.path)
        except BaseException as error:
            shutil.rmtree(self.path, ignore_errors=True)
            if isinstance(error, OSError) and disk.is_full(error):
                raise full_disk(self.path.parent) from error
            raise
        link = self.path.parent / protocol.LATEST_LINK
        temporary = self.path.parent / f".{protocol.LATEST_LINK}-{os.getpid()}"
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(self.path.name)
            temporary.replace(link)

    def write_plan(self, plan: LaunchPlan, script: str) -> None:
        """Replaces the recorded plan; later commands use the newest one."""
        write_atomically(self.path / protocol.PLAN_FILE, plan.to_json())
        write_atomically(self.path / protocol.ARTIFACT_FILE, script)

    def read_plan(self) -> LaunchPlan:
        """Raises ``InputError`` if the folder holds no plan of this version."""
        path = self.path / protocol.PLAN_FILE
        try:
            return parse_plan(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} is not the plan of a run: {str(error).splitlines()[0]}",
                f"{typed.command('ps', '--all')} lists the runs",
            ) from error

    @property
    def is_hold(self) -> bool:
        """Whether its nodes wait for other runs, by its plan."""
        with contextlib.suppress(InputError):
            return self.read_plan().is_hold
        return False

    def is_there(self) -> bool:
        """Whether the plan is still there: without it no command finds the run.

        False if this user may not look into the folder, as in another person's home.
        """
        with contextlib.suppress(PermissionError):
            return (self.path / protocol.PLAN_FILE).exists()
        return False

    def submitted_at(self) -> float:
        """Seconds since the epoch; 0 for a folder that lost its record."""
        at = read_object(self.path / SUBMITTED_FILE).get("at")
        return float(at) if isinstance(at, int | float) else 0.0

    def read_metrics(self, plan: LaunchPlan) -> Mapping[str, object]:
        """What rank 0 of the training last wrote; ``left_out`` says what could not be read.

        Paths in containers are replaced by those outside.
        """
        path = self.path / protocol.METRICS_FILE
        try:
            read = parse_object(read_limited(path))
            return {k: plan.outside(v) if isinstance(v, str) else v for k, v in read.items()}
        except OSError:
            return {}
        except ValueError as error:
            return {"left_out": f"all of {path.name}: {error}"}

    def write_outcome(self, outcome: Outcome) -> None:
        """On a full disk, empties the agent's archive and the script to make room.

        The nodes have ended, and the plan can make both again. Raises ``OSError``.
        """
        path = self.path / protocol.OUTCOME_FILE
        text = json.dumps(outcome.to_jsonable(), indent=2) + "\n"
        try:
            write_atomically(path, text)
        except OSError as error:
            if not disk.is_full(error):
                raise
            for name in (protocol.AGENT_ARCHIVE, protocol.ARTIFACT_FILE):
                # Truncate it, as a process that is still ending may have it open.
                with contextlib.suppress(FileNotFoundError):
                    os.truncate(self.path / name, 0)
            write_atomically(path, text)

    def read_outcome(self) -> Outcome | None:
        """None while the run goes on, and until a command has found how it ended."""
        data = read_object(self.path / protocol.OUTCOME_FILE)
        with contextlib.suppress(ValueError):
            return parse_record(Outcome, with_cause(data)) if data else None
        return None

    def read_node_outcome(self, node_index: int, incarnation: int) -> NodeOutcome | None:
        """What a node's agent wrote; None if it still runs, or was killed before it could write."""
        with contextlib.suppress(OSError):
            path = self.node_dir(node_index, incarnation) / protocol.OUTCOME_FILE
            return parse_node_outcome(path.read_text())
        return None

    def worker_logs(self) -> tuple[WorkerLog, ...]:
        """Every worker's log folder so far, oldest incarnation and attempt first."""
        nodes = self.path / protocol.NODES_DIR
        logs = (
            parse_worker_folder(str(folder.relative_to(self.path)))
            for pattern in WORKER_FOLDERS
            for folder in nodes.glob(pattern)
        )

        def order(log: WorkerLog) -> tuple[int, ...]:
            return log.incarnation, log.attempt, log.node_index, log.rank_on(0, 0)

        return tuple(sorted((log for log in logs if log is not None), key=order))

    def consoles(self) -> tuple[tuple[tuple[int, int], Path], ...]:
        """The file of every node's own output, by (node index, incarnation)."""
        files = (self.path / protocol.NODES_DIR).glob(f"*/*/{protocol.CONSOLE_FILE}")
        return tuple(sorted(((int(path.parts[-3]), int(path.parts[-2])), path) for path in files))

    def console(self, node_index: int, incarnation: int) -> Path:
        """The file that holds a node's own output."""
        return self.node_dir(node_index, incarnation) / protocol.CONSOLE_FILE

    def node_dir(self, node_index: int, incarnation: int) -> Path:
        """The folder for what one incarnation of a node leaves."""
        return self.path / protocol.NODES_DIR / str(node_index) / str(incarnation)

    def incarnations(self) -> tuple[tuple[int, int], ...]:
        """Every (node index, incarnation) that left a folder, in order."""
        folders = (self.path / protocol.NODES_DIR).glob("*/*/")
        numbers = ((path.parent.name, path.name) for path in folders)
        return tuple(sorted((int(i), int(n)) for i, n in numbers if i.isdigit() and n.isdigit()))

    def write_launcher(self) -> None:
        """Records this process as the one that follows the run."""
        mark = {"pid": os.getpid(), "start": start_of(os.getpid())}
        mark |= {"sees": process_space(), "machine": name_machine()}
        write_atomically(self.path / LAUNCHER_FILE, json.dumps(mark))

    @property
    def is_foreign(self) -> bool:
        """Whether a launcher on another machine started the run, and its end is not known here."""
        return not (self.path / LAUNCHER_FILE).exists() and self.read_outcome() is None

    @property
    def is_borrowed(self) -> bool:
        """Whether this is the temporary folder of a run that somebody else submitted."""
        return (self.path / BORROWED_FILE).exists()

    def launcher_pid(self) -> int | None:
        """The pid of the launcher that follows the run; None if it ended or died."""
        mark = read_object(self.path / LAUNCHER_FILE)
        return int(mark["pid"]) if lives(mark) else None

    @property
    def is_elsewhere(self) -> bool:
        """Whether its launcher ran on another machine, or in another container of this one."""
        mark, here = read_object(self.path / LAUNCHER_FILE), process_space()
        space, machine = str(mark.get("sees", here)), str(mark.get("machine", name_machine()))
        if space.partition(":")[0] == here.partition(":")[0]:
            return space != here
        # A reboot of this machine has ended all that ran on it.
        return machine != name_machine()

    def launcher_death(self) -> str:
        """Proof that the launcher died before the run ended; empty if there is none.

        A launcher of another machine, container or boot cannot be seen from here.
        """
        mark = read_object(self.path / LAUNCHER_FILE)
        if mark.get("sees") != process_space() or self.read_outcome() is not None:
            return ""
        return "" if lives(mark) else f"its process {mark['pid']} is not there any more"


def process_space() -> str:
    """Identifies the boot and the PID namespace that this process's pids belong to."""
    return f"{boot_id()}:{os.readlink('/proc/self/ns/pid')}"


def find_run(run_root: Path, name: str, *, goes_on: bool = False) -> RunFolder:
    """A run by its id, a unique beginning of it, its job's name, ``latest``, or its folder's path.

    ``goes_on``: of the runs of a job, the one that goes on is meant. The name of holds means the
    newest one. Raises ``InputError``, also if several fit.
    """
    for exact in (run_root / name, *([Path(name)] if os.sep in name else [])):
        if (exact / protocol.PLAN_FILE).is_file():
            return RunFolder(exact.resolve())
    runs = list_runs(run_root)
    matches = [run for run in runs if run.run_id.startswith(name)]
    of_job = [run for run in matches if run.run_id.rpartition("-")[0] == name]
    living = [run for run in of_job if goes_on and run.read_outcome() is None]
    fitting = living or of_job
    holds = [run for run in fitting if run.is_hold] if len(fitting) > 1 else []
    matches = holds[-1:] or fitting or matches
    if len(matches) == 1:
        return matches[0]
    if not runs:
        what, fix = describe_no_runs(run_root)
        what = what if name == protocol.LATEST_LINK else f"no run {name!r}: {what}"
        raise InputError(what, f"{fix}; {typed.command('ps')} names those that run elsewhere here")
    what = f"no run {name!r} in {run_root.absolute()}"
    if matches:
        newest = ", ".join(run.run_id for run in matches[-5:])
        what = f"{name!r} may be any of {len(matches)} runs, such as {newest}"
    raise InputError(what, f"{typed.command('ps', '--all')} lists the runs")


def describe_no_runs(run_root: Path) -> tuple[str, str]:
    """What is wrong with a folder that holds no run, and what to do."""
    what = f"no runs in {run_root.absolute()}"
    if not run_root.exists():
        what += ", which is not there"
    return what, "cd to the folder where you started it, or --runs DIR"


def list_runs(run_root: Path) -> list[RunFolder]:
    """All runs recorded in a folder, oldest first, by absolute paths.

    Raises ``InputError`` if it is no folder.
    """
    if run_root.exists() and not run_root.is_dir():
        raise InputError(f"--runs {run_root}: not a folder", "--runs DIR, the folder of the runs")
    if run_root.exists() and not os.access(run_root, os.R_OK | os.X_OK):
        fix = f"chmod u+rx {run_root}, or name another: --runs DIR"
        raise InputError(f"--runs {run_root}: Permission denied", fix)
    plans = run_root.absolute().glob(f"*/{protocol.PLAN_FILE}")
    plans = (plan for plan in plans if not plan.parent.is_symlink())
    return sorted((RunFolder(p.parent) for p in plans), key=RunFolder.submitted_at)


def has_checkpoints(folder: str) -> bool | None:
    """Whether a job's folder for checkpoints holds any; None if it is not on this machine."""
    try:
        held = os.listdir(folder) if folder else None
    except PermissionError:
        return True
    except OSError:  # gone, or a path inside of containers
        return None
    return None if held is None else any(name != generations.FOLDER for name in held)


def check_folder(path: Path) -> None:
    """Raises ``InputError`` or ``DiskFullError`` if the folder, or a file in it, cannot be made.

    It makes a folder and removes it: permissions do not show file systems such as ``/proc``.
    """
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        os.rmdir(tempfile.mkdtemp(dir=existing))
    except OSError as error:
        raise _cannot_be_made(path, error) from error


def make_folders(paths: Iterable[str]) -> None:
    """Makes folders and their parents. Raises ``InputError``, or ``DiskFullError``."""
    for path in paths:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_be_made(Path(path), error) from error


def full_disk(folder: Path) -> DiskFullError:
    """The error for a folder whose disk is full."""
    what = disk.describe("", folder)
    return DiskFullError(what, "make room there, or name another folder (--runs DIR)")


def _cannot_be_made(path: Path, error: OSError) -> LauncherError:
    if disk.is_full(error):
        return full_disk(path)
    fix = "name another one (checkpoint_dir of the job, --runs DIR)"
    fix += ", or change its owner" if isinstance(error, PermissionError) else ""
    if error.errno == errno.EROFS:
        disk_of = shlex.quote(str(disk.mount_of(path)))
        fix += f", or mount -o remount,rw {disk_of}"
    how = "written" if path.is_dir() else "made"
    return InputError(f"the folder {path} cannot be {how}: {error.strerror}", fix)
