"""The test job of ``doctor``: one compute node for a minute at most."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from launcher.contract.clock import SystemClock
from launcher.contract.errors import InputError
from launcher.contract.records import parse_record
from launcher.doctor import judge, run
from launcher.doctor.finding import Finding, failed, ok
from launcher.targets.slurm import doctor_judge
from launcher.targets.slurm.client import SlurmError, cancel, run_command
from launcher.targets.slurm.script import quote_option
from launcher.targets.slurm.settings import SlurmSettings
from launcher.targets.slurm.starts import read_last_line

NAME = "launcher-doctor"
PROGRAM, CLOCK, LOG, ANSWER = "probe.py", "clock", "log", "node.json"
UNSEEN, UNWRITABLE, BAD_PYTHON = 3, 4, 5
NOTICED_WITHIN_S = 60.0
"""A shared file system shows the file of another machine once its caches have expired."""
LOOK_S = 0.2
ENDS = {
    UNSEEN: ("a node does not see FOLDER", "--runs FOLDER on the shared file system (df -T)"),
    UNWRITABLE: ("a node cannot write into FOLDER", "chmod u+w FOLDER; df FOLDER on the node"),
    BAD_PYTHON: (
        "the Python of the nodes does not run",
        "--set slurm.python=PYTHON that has torch, or lines in slurm.setup that activate it",
    ),
}
"""What the exit codes of the test job mean, with the fix."""


def run_test_job(settings: SlurmSettings, run_root: Path, limit_s: float) -> Iterator[Finding]:
    """Submits the test job, waits until it has ended, and tells what the node says.

    Blocks for ``limit_s`` and a minute at most; nothing of it is left in the queue or on disk.
    """
    was_there = run_root.is_dir()
    try:
        run_root.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(
            prefix=f".{NAME}-", dir=run_root.resolve(), ignore_cleanup_errors=True
        )
    except OSError as error:
        told = f"cannot be written: {error.strerror}"
        yield failed("run folder", str(run_root), told, "--runs FOLDER that you may write to")
        return
    with folder as path:
        yield from _TestJob(settings, Path(path), limit_s).run()
    if not was_there:
        with contextlib.suppress(OSError):
            run_root.rmdir()


class _TestJob:
    """One test job; in the queue it has the name of its folder."""

    def __init__(self, settings: SlurmSettings, folder: Path, limit_s: float) -> None:
        self._settings, self._folder, self._limit_s = settings, folder, limit_s
        self._name = folder.name.lstrip(".")
        self._clock = SystemClock()

    def run(self) -> Iterator[Finding]:
        script = self._folder / "job.sh"
        script.write_text(render_test_job(self._settings, self._folder))
        (self._folder / PROGRAM).write_bytes(run.PROGRAM.read_bytes())
        began = self._clock.wall()
        try:
            code = self._submit(script)
        except SlurmError as error:
            if not error.is_away:
                words = doctor_judge.judge_submission(error.what, accepted=False)
                yield failed("test job", "sbatch", words.found, words.fix)
                return
            waits = self._cancel()
            told = f"has not ended within {self._limit_s:g} s{waits}"
            yield failed("test job", "queue", told, "--limit SECONDS, or squeue --start --me")
            return
        except BaseException:
            self._cancel()
            raise
        yield from self._judge(code, began, self._clock.wall())

    def _submit(self, script: Path) -> int:
        """The job's exit code. Raises ``SlurmError`` where it is refused or does not end."""
        options = (f"--job-name={self._name}", "--time=1", "--nodes=1", "--ntasks-per-node=1")
        argv = ("sbatch", "--wait", "--parsable", *options, str(script))
        try:
            run_command(*argv, limit_s=self._limit_s, cwd="/")
        except SlurmError as error:
            if error.code in (UNSEEN, UNWRITABLE, BAD_PYTHON):
                return error.code
            raise
        return 0

    def _cancel(self) -> str:
        """Takes the job out of the queue; says why it had not ended, in squeue's words."""
        out = ""
        with contextlib.suppress(SlurmError):
            own = ("squeue", "--me", "--noheader", f"--name={self._name}", "--format=%A %T (%r)")
            out = run_command(*own).strip()
            cancel(line.split()[0] for line in out.splitlines() if line.strip())
        return f": {out.partition(' ')[2]}" if out else ""

    def _judge(self, code: int, began: float, ended: float) -> Iterator[Finding]:
        folder = str(self._folder.parent)
        if code:
            found, fix = ENDS[code]
            if code == BAD_PYTHON:
                found += f": {read_last_line(self._folder / LOG) or 'it says nothing'}"
            yield failed("test job", "compute node", found.replace("FOLDER", folder), fix)
            return
        noticed_s = self._wait_for(self._folder / ANSWER)
        if noticed_s is None:
            found = f"wrote into {folder}, but this machine does not see it"
            yield failed("test job", "compute node", found, ENDS[UNSEEN][1])
            return
        try:
            told = (self._folder / ANSWER).read_text()
            node = parse_record(judge.NodeAnswer, json.loads(told)) if told.strip() else None
            at, host = (self._folder / CLOCK).read_text().split()
        except (OSError, ValueError, InputError) as error:
            yield failed("test job", "compute node", f"unreadable answer: {error}", "try it again")
            return
        slow = f", which was seen here after {noticed_s:.0f} s" if noticed_s >= 1 else ""
        yield ok("test job", host, f"ran, and wrote into {folder}{slow}")
        yield doctor_judge.judge_clock(host, float(at), began, ended)
        if node is not None:
            yield from judge.judge_environment(node, host)
            yield from judge.judge_machine(node, host, meets_others=False)

    def _wait_for(self, path: Path) -> float | None:
        """Seconds until this machine sees a file; None where it does not."""
        began = self._clock.monotonic()
        while (waited := self._clock.monotonic() - began) < NOTICED_WITHIN_S:
            # Reads the folder anew: that a file is missing is remembered for longer.
            if path.name in os.listdir(path.parent):
                return waited
            self._clock.sleep(LOOK_S)
        return None


def render_test_job(settings: SlurmSettings, folder: Path) -> str:
    """The batch script: the job's own options, then the probe in the job's own Python."""
    here = shlex.quote(str(folder))
    probe = f"{shlex.quote(settings.python)} {PROGRAM} node > {ANSWER}.part || exit {BAD_PYTHON}"
    return "\n".join(
        (
            "#!/bin/bash",
            *(f"#SBATCH {quote_option(option)}" for option in settings.options),
            "#SBATCH --output=/dev/null",
            f"cd {here} || exit {UNSEEN}",
            f'echo "$(date +%s.%N) $SLURMD_NODENAME" > {CLOCK} || exit {UNWRITABLE}',
            f"exec > {LOG} 2>&1",
            *settings.setup,
            f"cd {here}; export CHECKPOINT_DIR={here}",
            # A container's Python is not the node's.
            f": > {ANSWER}.part" if settings.container else probe,
            f"mv {ANSWER}.part {ANSWER}",
            "",
        )
    )
