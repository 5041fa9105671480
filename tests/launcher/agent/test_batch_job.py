"""What the first process of a batch job decides, as tables. Needs no Slurm."""

import ast
import os
import signal
import threading
from pathlib import Path

import pytest

from launcher.agent import __main__, batch_job
from launcher.agent.batch_job import (
    FAULT,
    OVER,
    PREEMPTED,
    REQUEUED,
    STOP_REQUESTED,
    BatchJob,
    decide_next,
    fold_codes,
    read_options,
)
from launcher.contract import protocol
from launcher.contract.causes import Cause
from launcher.contract.errors import ExitCode


@pytest.mark.parametrize(
    ("agents", "srun", "code"),
    [
        ([0, 0], 0, 0),
        # A lost node makes srun fail, though the others have ended the training.
        ([0], 143, 0),
        ([194, 0], 194, 0),
        # A failed training counts before all others.
        ([194, 1], 194, 1),
        ([0, 2], 2, 2),
        ([195, 193], 193, 195),
        # No agent has told its own.
        ([], 137, 137),
        ([], 127, 127),
        ([], 0, 0),
    ],
)
def test_the_code_of_a_start_is_that_of_its_agents(agents, srun, code):
    assert fold_codes(agents, srun) == code


TIME_LIMIT, RESTARTED = " Reason=TimeLimit Restarts=0 ", " Reason=None Restarts=1 "
CANCELLED = " Reason=None Restarts=0 PreemptTime=None "
TAKEN = " Reason=None Restarts=0 PreemptTime=2026-11-29T20:41:22 "
STOPPED = f"{OVER} {STOP_REQUESTED}"


@pytest.mark.parametrize(
    ("code", "asked", "shown", "then"),
    [
        # ``shown`` is "-" where Slurm has sent no signal, None where its controller is away.
        (0, "", "-", OVER),
        (1, "", "-", OVER),
        (127, "", "-", OVER),
        (0, "preempted", TIME_LIMIT, OVER),
        (198, "", "-", OVER),
        (198, "preempted", TIME_LIMIT, OVER),
        (195, "", "-", FAULT),
        (137, "", "-", FAULT),
        (143, "preempted", "-", PREEMPTED),
        (195, "preempted", "-", PREEMPTED),
        (143, "stop-requested", "-", OVER),
        (130, "interrupted", "-", OVER),
        (143, "", None, REQUEUED),
        (143, "stop-requested", None, REQUEUED),
        (143, "", RESTARTED, REQUEUED),
        (143, "preempted", RESTARTED, REQUEUED),
        (143, "", CANCELLED, STOPPED),
        (143, "preempted", CANCELLED, STOPPED),
        (143, "", "JobId=7", STOPPED),
        (143, "", TAKEN, f"{OVER} {PREEMPTED}"),
        (143, "", TIME_LIMIT, PREEMPTED),
        (143, "preempted", TIME_LIMIT, PREEMPTED),
        (143, "stop-requested", TIME_LIMIT, OVER),
    ],
)
def test_a_job_comes_back_after_faults_of_the_platform_and_at_its_time_limit(
    code, asked, shown, then
):
    is_signalled = shown != "-"
    assert decide_next(code, asked, is_signalled, shown if is_signalled else None, 0) == then


def test_a_restart_that_was_counted_before_this_start_is_none():
    assert decide_next(143, "", True, RESTARTED, 1) == STOPPED


def job_in(run: Path) -> BatchJob:
    options = [f"--run={run}", f"--checkpoints={run}", "--script=/s", "--grace=1"]
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1"}
    (run / "slurm").mkdir()
    return BatchJob(read_options([*options, "--max-requeues=3", "--requeue"]), environ)


def test_the_files_of_a_run_are_made_once_also_where_there_are_no_links(tmp_path, monkeypatch):
    job, path = job_in(tmp_path), tmp_path / "token"

    def link(*_: str) -> None:
        raise PermissionError("Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", link)
        job.write_once(path, "first", 0o600)
    job.write_once(path, "second", 0o600)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("first", 0o600)
    assert [*(tmp_path / "slurm").iterdir()] == []


def test_a_signal_that_nobody_has_taken_yet_counts(tmp_path, monkeypatch):
    """As where scancel ends srun at once: a requeue would bring the job back."""
    asked = []

    def run_command(*argv: str) -> tuple[bool, str]:
        asked.append(argv)
        return False, CANCELLED

    monkeypatch.setattr(batch_job, "run_command", run_command)
    job = job_in(tmp_path)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert job.come_back(143) == (143, STOPPED)
    finally:
        signal.sigtimedwait([signal.SIGTERM], 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert asked == [("scontrol", "show", "job", "-o", "7")]


@pytest.mark.parametrize("module", [batch_job, __main__])
def test_any_python_from_3_6_reads_it(module):
    tree = ast.parse(Path(module.__file__).read_text(), feature_version=(3, 6))
    assert "__future__" not in {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    at_top = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    assert not [n for n in at_top if (n.module or "").startswith("launcher")]


def test_its_words_are_those_of_the_contract():
    own = (batch_job.STOP_FILE, batch_job.DISK_FULL)
    assert own == (protocol.STOP_FILE, ExitCode.DISK_FULL.value)
    causes = (batch_job.PREEMPTED, batch_job.STOP_REQUESTED, batch_job.INTERRUPTED)
    assert causes == (Cause.PREEMPTED, Cause.STOP_REQUESTED, Cause.INTERRUPTED)
    assert batch_job.STARTS_AGAIN == protocol.STARTS_AGAIN
