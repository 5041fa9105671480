"""From Python: ``Job``, ``run`` and a ``RunHandle`` to follow, as docs/python.md shows them.

What ``run`` starts is ``launcher run --detach`` in a new process: nothing is forked from the
caller, whose signals, streams and current folder stay its own.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launcher.api.listing import RunStatus, read_output, read_state, read_status
from launcher.api.report import report_run
from launcher.api.resizing import scale_run
from launcher.api.stopping import stop_run
from launcher.contract import protocol
from launcher.contract.errors import DiskFullError, ExitCode, InputError, LauncherError, TargetError
from launcher.contract.waits import POLL_S, SLOW_LOOK_S
from launcher.follow.requests import request_stop
from launcher.job.command import parse_command
from launcher.job.file import check_job
from launcher.job.script import UNNAMED, name_of
from launcher.job.spec import JobSpec
from launcher.job.values import NotAcceptedError
from launcher.runs.folder import RunFolder, find_run
from launcher.runs.folder import list_runs as list_folders
from launcher.runs.outcome import Outcome
from launcher.runs.report import Postmortem
from launcher.targets.held.hold import Hold
from launcher.targets.subprocesses.conversation import Conversation

INTERRUPT_LIMIT_S = 10.0
"""How long the command line may take to end after an interrupt."""
ERRORS: dict[int, type[LauncherError]] = {
    error.exit_code: error for error in (InputError, TargetError, DiskFullError)
}
COMMAND_LINE = """\
import sys
sys.path.append(sys.argv[1])
sys.argv[:2] = ["__main__.py"]
from launcher.__main__ import main
main()
"""
"""The same launcher in a new interpreter, wherever it is; messages name ``python -m launcher``."""


class Job:
    """What to run: the keys of a job file as keyword arguments, nested sections as dicts.

    The default ``name`` comes from the script. Relative paths start at the folder that is current
    when the job is run. Raises ``InputError`` with everything that is wrong.
    """

    __signature__ = inspect.Signature(
        [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY) for key in JobSpec.model_fields]
    )

    def __init__(self, **keys: Any) -> None:
        name = UNNAMED
        with contextlib.suppress(NotAcceptedError):  # told below
            name = name_of(parse_command(keys.get("command")))
        self._text = json.dumps({"name": name, **keys}, default=os.fspath)
        self.spec = check_job(self._text, "Job")

    def __repr__(self) -> str:
        return f"<Job {self.spec.name}: {' '.join(self.spec.command)}>"

    def to_json(self) -> str:
        """The text of a job file."""
        return self._text


class RunHandle:
    """One run, to follow and to act on; everything that it reports is read from the run folder.

    In a ``with`` block, an exception that leaves the block stops the run. Methods may be called
    from any thread, and raise ``TargetError`` if the run's target does not answer.
    """

    def __init__(self, folder: Path, notes: Sequence[str] = ()) -> None:
        self.folder = folder.absolute()
        """The run folder: plan, logs, ``metrics.json`` and what the workers write there."""
        self.notes = tuple(notes)
        """What the launcher said at the start: where the job runs and why."""
        self._record = RunFolder(self.folder)

    def __repr__(self) -> str:
        return f"<RunHandle {self.run_id} in {self.folder}>"

    @property
    def run_id(self) -> str:
        """Its id, as ``launcher`` commands take it."""
        return self.folder.name

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None while it goes on. Does not wait."""
        if self._record.launcher_pid() is not None and self._record.read_outcome() is None:
            return None
        return read_state(self._record, self._record.read_plan())[1]

    def wait(self, timeout: float | None = None) -> Outcome:
        """Blocks until the run has ended; a failed run is an outcome too, not an exception.

        Raises ``TimeoutError`` after ``timeout`` seconds. The run goes on after that, and after a
        ``KeyboardInterrupt``.
        """
        deadline = None if timeout is None else time.monotonic() + float(timeout)
        while (outcome := self.outcome) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self.run_id} has not ended within {timeout:g} s; it goes on")
            time.sleep(SLOW_LOOK_S if self._record.launcher_pid() is None else POLL_S)
        return outcome

    def status(self) -> RunStatus:
        """The run and its nodes as they are now; ``print`` shows it as ``launcher status``."""
        return read_status(self._record)

    def logs(self, rank: int | None = None, *, follow: bool = False) -> Iterator[str]:
        """The workers' lines from the beginning, each with its ``[node/rank]``.

        With ``rank``, that worker's lines without the prefix. With ``follow``, until the run ends.
        """
        for output, prefix in read_output(
            self._record, follow=follow, rank=rank, agents=False, keeps_returns=False
        ):
            for line in output.block.data.decode().removesuffix("\n").split("\n"):
                yield line if rank is not None else f"{prefix} {line}"

    def stop(self, grace: float | None = None) -> Outcome:
        """Ends the run and waits for its end; ``grace`` (seconds) replaces the job's own.

        Idempotent: for a run that has ended, returns its outcome.
        """
        stop_run(self._record, grace)
        # Ended by the run's end, which stop_run has brought about.
        return self.wait()

    def scale(self, nodes: int) -> None:
        """Asks for another number of nodes of an elastic run, and waits for the answer.

        Raises ``InputError`` if the run cannot have that many.
        """
        scale_run(self._record, nodes)

    def report(self) -> Postmortem:
        """What happened so far: first cause, restarts, nodes; ``print`` shows it."""
        return report_run(self._record, time.time())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.stop()


def run(
    job: Job | str | os.PathLike[str] | None = None,
    *,
    on: str | None = None,
    runs: str | os.PathLike[str] | None = None,
    args: str | Sequence[object] = (),
    again: str | None = None,
    **options: object,
) -> RunHandle:
    """Starts a job, and returns once its nodes are started; the run goes on without the caller.

    ``job`` is a ``Job``, or the path of a script or job file; in its place ``again`` names an
    earlier run to repeat. ``runs`` is the folder of the run folders. ``args`` are added to the
    script's own; one text is split as a shell splits it. ``options`` are those of ``launcher run``,
    such as ``resume="digits-0a1b2c"``. Blocks while code is sent or an image is pulled; an
    exception meanwhile, such as ``KeyboardInterrupt``, ends what was started.

    Raises ``InputError`` if the job or an option is wrong, ``TargetError`` if the job cannot run.
    """
    root = _run_root(runs).absolute()
    extra = shlex.split(args) if isinstance(args, str) else [str(word) for word in args]
    with tempfile.TemporaryDirectory(prefix="launcher-job-") as folder:
        written = Path(folder, "job.json")
        if isinstance(job, Job):
            written.write_text(job.to_json())
        named = str(written) if isinstance(job, Job) else job
        words = [os.fspath(named)] if named is not None else []
        words += _words({"on": on, "again": again, **options})
        return start([*words, "--", *extra] if extra else words, root, job_file=str(written))


class Nodes:
    """Nodes that are held for runs to come; released at the end of a ``with`` block.

    ``run`` is the function ``run`` on these nodes, for one run at a time.
    """

    def __init__(self, held: RunHandle) -> None:
        self.run_id, self._held = held.run_id, held

    def __repr__(self) -> str:
        return f"<Nodes {self.run_id}>"

    def run(self, job: Job | str | os.PathLike[str], **options: Any) -> RunHandle:
        """Starts a job there, and returns at once. Raises ``InputError`` while another job runs."""
        folder = self._held.folder.parent
        return run(job, runs=folder, **{"in": self.run_id, **options})

    def release(self) -> None:
        """Ends the nodes, after a run that still uses them."""
        if (user := Hold(RunFolder(self._held.folder)).read_user()) is not None:
            find(user.run_id, self._held.folder.parent).stop()
        self._held.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def hold(
    *,
    name: str = "held",
    on: str | None = None,
    runs: str | os.PathLike[str] | None = None,
    **options: object,
) -> Nodes:
    """Starts nodes that wait for runs, and returns once they do; they go on without the caller.

    ``options`` are those of ``launcher hold``, such as ``nnodes=2``. Raises as ``run`` does.
    """
    words = _words({"name": name, "on": on, **options})
    return Nodes(start(words, _run_root(runs).absolute(), command=("hold",)))


def start(
    words: Sequence[str],
    root: Path,
    *,
    job_file: str = "",
    command: Sequence[str] = ("run", "--detach"),
) -> RunHandle:
    """Runs ``launcher run --detach`` with these words; notes name ``job_file`` as Job."""
    code, printed, errors = _call([*command, f"--runs={root}", *words], root)
    shown = re.sub(rf"{re.escape(job_file)}(:1)?", "Job", errors) if job_file else errors
    notes, _, error = shown.partition("error: ")
    if code != ExitCode.OK:
        what, _, fix = (error or notes).strip().rpartition("\n  fix: ")
        raise ERRORS.get(code, LauncherError)(what or fix, fix if what else "")
    return RunHandle(
        root / printed.strip(), [n.removeprefix("launcher: ") for n in notes.splitlines()]
    )


def find(
    run_id: str = protocol.LATEST_LINK, runs: str | os.PathLike[str] | None = None
) -> RunHandle:
    """An earlier run, by its id or a unique beginning of it; by default the one started last.

    Raises ``InputError`` if there is none.
    """
    return RunHandle(find_run(_run_root(runs), run_id).path)


def list_runs(runs: str | os.PathLike[str] | None = None) -> list[RunHandle]:
    """All runs of a folder, oldest first."""
    return [RunHandle(folder.path) for folder in list_folders(_run_root(runs))]


def _run_root(runs: str | os.PathLike[str] | None) -> Path:
    return Path(runs or os.environ.get("LAUNCHER_RUNS") or "runs")


def _call(words: Sequence[str], root: Path) -> tuple[int, str, str]:
    """The command line in a new process: its exit code, and what it wrote to stdout and stderr.

    An exception meanwhile ends what was started in ``root``, the folder of the run folders.
    """
    # -P: a folder `yaml` or `launcher` of the caller must not be imported.
    python = (sys.executable, "-P", "-c", COMMAND_LINE, str(Path(__file__).parents[2]))
    command = Conversation((*python, *words))
    lines: list[bytes] = []
    try:
        # Ended by the command line, which prints the run's name or ends. In one call, because an
        # interrupt after the line was read and before it is kept would lose the run.
        lines.extend(command.stdout)
    except BaseException:
        command.interrupt()
        with command.limit(INTERRUPT_LIMIT_S):
            # Ended by INTERRUPT_LIMIT_S, after which the command is killed.
            lines.extend(command.stdout)
        command.end()
        if lines:  # The name came too late for the command line to end the run itself.
            request_stop(RunFolder(root / lines[0].decode().strip()), keep=False)
        raise
    code, errors = command.end()
    return code, lines[0].decode() if lines else "", errors


def _words(options: Mapping[str, object]) -> list[str]:
    """Options as words of the command line; a list stands for names with commas, or for many
    ``set`` or ``env``."""
    words = []
    for name, value in options.items():
        many = [value]
        if isinstance(value, list | tuple):
            many = [*value] if name in ("set", "env") else [",".join(value)]
        for item in many:
            if item is not None and item is not False:
                words.append(f"--{name.replace('_', '-')}" + ("" if item is True else f"={item}"))
    return words
