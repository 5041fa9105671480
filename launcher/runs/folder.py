"""Run folders: what a run leaves for people and for later calls, under ``runs/<run id>/``."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

from launcher.agent import disk
from launcher.agent.reserve import release, reserve, write_into_reserve
from launcher.contract import protocol
from launcher.contract.errors import DiskFullError, InputError
from launcher.plan.launch_plan import LaunchPlan, parse_plan
from launcher.plan.torchrun import WORKER_FOLDERS, WorkerLog, parse_worker_folder
from launcher.runs.outcome import Outcome

LAUNCHER_FILE = "launcher.json"
"""Which launcher follows the run: its pid and that process's start."""
POD_LEDGER = "pods.jsonl"
"""Beside the agents' ledgers, laid out as they are: what a cluster told of the run's pods, and what
the agents said on their consoles; ``source`` and ``event`` are POD_SOURCE, ``text`` has words."""
POD_SOURCE = "cluster"
SUBMITTED_FILE = "submitted.json"
"""When the run was submitted: ``{"at": seconds since the epoch}``."""
BORROWED_FILE = "borrowed"
"""In a folder that lasts as long as one command, of a run that others have submitted."""
OUTCOME_BYTES = 65536
"""Set aside for the run's outcome, whose report holds the last lines of several logs."""


class RunFolder:
    """One run's folder on the launcher's machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        return self.path.name

    def create(self, plan: LaunchPlan, script: str, at: float) -> None:
        """Makes the folder with the plan and the artifact, and points ``latest`` at it.

        ``at`` is the time of submission, seconds since the epoch. Raises ``DiskFullError``, and
        leaves no folder, where there is no room for it.
        """
        make_folders((str(self.path),))
        try:
            reserve(self.path / protocol.OUTCOME_FILE, OUTCOME_BYTES)
            write_atomically(self.path / SUBMITTED_FILE, json.dumps({"at": at}))
            self.write_plan(plan, script)
        except OSError as error:
            shutil.rmtree(self.path, ignore_errors=True)
            if disk.is_full(error):
                raise full_disk(self.path.parent) from error
            raise
        link = self.path.parent / protocol.LATEST_LINK
        temporary = self.path.parent / f".{protocol.LATEST_LINK}-{os.getpid()}"
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(self.path.name)
            temporary.replace(link)

    def write_plan(self, plan: LaunchPlan, script: str) -> None:
        """Records the plan now in force; the newest is what a later call works from."""
        write_atomically(self.path / protocol.PLAN_FILE, plan.to_json())
        write_atomically(self.path / protocol.ARTIFACT_FILE, script)

    def read_plan(self) -> LaunchPlan:
        """Raises ``InputError`` where the folder holds no plan of this version."""
        path = self.path / protocol.PLAN_FILE
        try:
            return parse_plan(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} is not the plan of a run: {str(error).splitlines()[0]}",
                "launcher ps --all lists the runs",
            ) from error

    def is_there(self) -> bool:
        """Whether it still holds the plan: without it no command finds the run."""
        return (self.path / protocol.PLAN_FILE).exists()

    def submitted_at(self) -> float:
        """Seconds since the epoch; 0 for a folder that lost its record."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return float(json.loads((self.path / SUBMITTED_FILE).read_text())["at"])
        return 0.0

    def read_metrics(self) -> dict[str, object]:
        """What rank 0 of the training last wrote; empty where it wrote nothing readable."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.path / protocol.METRICS_FILE).read_text())
            if isinstance(found, dict):
                return found
        return {}

    def write_outcome(self, outcome: Outcome) -> None:
        """On a full disk it goes where room was set aside, if need be without the report."""
        path, data = self.path / protocol.OUTCOME_FILE, outcome.to_jsonable()
        texts = [json.dumps(one, indent=2) + "\n" for one in (data, {**data, "failure": None})]
        try:
            write_atomically(path, texts[0])
        except OSError:
            if not write_into_reserve(path, *texts):
                raise
        release(path)

    def read_outcome(self) -> Outcome | None:
        """None while the run has not ended, or nobody has yet found out how."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            text = (self.path / protocol.OUTCOME_FILE).read_text()
            return Outcome.from_jsonable(json.loads(text))
        return None

    def worker_logs(self) -> tuple[WorkerLog, ...]:
        """Every worker's log folder so far, oldest incarnation and attempt first."""
        nodes = self.path / protocol.NODES_DIR
        found = (
            parse_worker_folder(str(folder.relative_to(self.path)))
            for pattern in WORKER_FOLDERS
            for folder in nodes.glob(pattern)
        )
        order = lambda w: (w.incarnation, w.attempt, w.node_index, w.rank_on(0, 0))  # noqa: E731
        return tuple(sorted((log for log in found if log is not None), key=order))

    def consoles(self) -> tuple[tuple[tuple[int, int], Path], ...]:
        """Every node's own output so far, by (node index, incarnation)."""
        found = (self.path / protocol.NODES_DIR).glob(f"*/*/{protocol.CONSOLE_FILE}")
        return tuple(sorted(((int(path.parts[-3]), int(path.parts[-2])), path) for path in found))

    def console(self, node_index: int, incarnation: int) -> Path:
        """The file that holds a node's own output."""
        return self.node_dir(node_index, incarnation) / protocol.CONSOLE_FILE

    def node_dir(self, node_index: int, incarnation: int) -> Path:
        """What one incarnation of a node leaves."""
        return self.path / protocol.NODES_DIR / str(node_index) / str(incarnation)

    def incarnations(self) -> tuple[tuple[int, int], ...]:
        """Every (node index, incarnation) that left a folder, in order."""
        found = (self.path / protocol.NODES_DIR).glob("*/*/")
        numbers = ((path.parent.name, path.name) for path in found)
        return tuple(sorted((int(i), int(n)) for i, n in numbers if i.isdigit() and n.isdigit()))

    def write_launcher(self) -> None:
        """Records this process as the one that follows the run."""
        start = process_start(os.getpid())
        mark = {"pid": os.getpid(), "start": start, "sees": process_space()}
        write_atomically(self.path / LAUNCHER_FILE, json.dumps(mark))

    @property
    def is_foreign(self) -> bool:
        """Whether another machine's launcher started it, and its end is not known here."""
        return not (self.path / LAUNCHER_FILE).exists() and self.read_outcome() is None

    @property
    def is_borrowed(self) -> bool:
        """Whether it is here for one command: the run is another's, who ends it and tidies up."""
        return (self.path / BORROWED_FILE).exists()

    def launcher_pid(self) -> int | None:
        """The living launcher that follows the run; None where it ended or died."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            mark = json.loads((self.path / LAUNCHER_FILE).read_text())
            start = process_start(mark["pid"])
            # A pid alone may have been given to another process since.
            if start is not None and start == mark["start"]:
                return int(mark["pid"])
        return None

    def launcher_death(self) -> str:
        """What proves that the launcher has died before the run had ended; "" where nothing does.

        That of another machine, container or boot cannot be looked for from here, and a run without
        a record may be anybody's.
        """
        if self.read_outcome() is not None:
            return ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            mark = json.loads((self.path / LAUNCHER_FILE).read_text())
            pid, start = mark["pid"], process_start(mark["pid"])
            if mark["sees"] == process_space() and mark["start"] != start:
                return (
                    f"there is no process {pid} any more"
                    if start is None
                    else f"process {pid} is another one by now"
                )
        return ""


def process_space() -> str:
    """The same for processes that know each other by the same pids: of one boot and container."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def process_start(pid: int) -> str | None:
    """What tells a process from all others that ever had its pid; None where there is none.

    On Linux the boot and the tick in it. Not psutil's time of day, which is the boot's time plus
    the tick: when the clock is set, every process seems to have started at another time.
    """
    with contextlib.suppress(OSError):
        # The name, in parentheses, may hold spaces; the 20th field after it is the start.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] in _DEAD:
            return None
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{fields[19]}"
    return None if Path("/proc/self").exists() else _process_start_elsewhere(pid)


_DEAD = ("Z", "X")
"""States of a process that has ended and was not taken note of by its parent yet."""


def _process_start_elsewhere(pid: int) -> str | None:
    import psutil

    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def find_run(run_root: Path, name: str) -> RunFolder:
    """A run by its id, a unique beginning of it, or ``latest``. Raises ``InputError``."""
    exact = run_root / name
    if (exact / protocol.PLAN_FILE).is_file():
        return RunFolder(exact.resolve())
    matches = [run for run in list_runs(run_root) if run.run_id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    what = (
        f"no run {name!r} in {run_root}"
        if not matches
        else (f"{name!r} may be any of {', '.join(run.run_id for run in matches)}")
    )
    raise InputError(what, "launcher ps --all lists the runs")


def list_runs(run_root: Path) -> list[RunFolder]:
    """All runs recorded in a folder, oldest first. Raises ``InputError`` where it is none."""
    if run_root.exists() and not run_root.is_dir():
        raise InputError(f"--runs {run_root}: not a folder", "--runs DIR, the folder of the runs")
    if run_root.exists() and not os.access(run_root, os.R_OK | os.X_OK):
        raise InputError(
            f"--runs {run_root}: Permission denied", "name another, or change its mode"
        )
    plans = [p for p in run_root.glob(f"*/{protocol.PLAN_FILE}") if not p.parent.is_symlink()]
    return sorted((RunFolder(p.parent) for p in plans), key=RunFolder.submitted_at)


def check_folder(path: Path) -> None:
    """Raises ``InputError`` where the folder is not there and could not be made; makes nothing."""
    found = next(parent for parent in (path, *path.parents) if parent.exists())
    if not found.is_dir() or not os.access(found, os.W_OK):
        why = "Permission denied" if found.is_dir() else "Not a directory"
        raise _cannot_be_made(str(path), why)


def make_folders(paths: Iterable[str]) -> None:
    """Makes folders and their parents.

    Raises ``InputError`` where one cannot be made, ``DiskFullError`` where that is why.
    """
    for path in paths:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if disk.is_full(error):
                raise full_disk(Path(path)) from error
            raise _cannot_be_made(path, error.strerror or str(error)) from error


def full_disk(folder: Path) -> DiskFullError:
    """What a person is told of the full disk of a folder."""
    what = disk.describe(folder, folder)
    return DiskFullError(what, "make room there, or name another folder (--runs DIR)")


def _cannot_be_made(path: str, why: str) -> InputError:
    return InputError(
        f"the folder {path} cannot be made: {why}",
        "name another one (checkpoint_dir of the job, --runs DIR), or change its owner",
    )


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file in one step, so that a reader or a crash never sees half of it."""
    temporary = tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False)  # noqa: SIM115
    try:
        with temporary:
            temporary.write(text)
        os.chmod(temporary.name, 0o644)
        os.replace(temporary.name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary.name)
        raise
