"""What a call from Python types on the command line, and what becomes of what that says."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher import InputError, Job, LauncherError, RunHandle, TargetError, find, hold, run
from launcher.api import python
from launcher.contract.errors import DiskFullError
from launcher.contract.protocol import STOP_RUN_FILE
from launcher.follow.requests import KEEP
from launcher.targets.held.hold import Hold
from tests.launcher.runner import ROOT
from tests.waiting import wait_until

NAME = "digits-0a1b2c"


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets a script that the command line is, in place of Python; it keeps its words."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    def say(script: str) -> None:
        kept = f'shift 3\nprintf "%s\\n" "$@" >{tmp_path}/typed\n'
        (tmp_path / "python").write_text(f"#!/bin/sh\n{kept}{script}\n")
        (tmp_path / "python").chmod(0o755)

    say(f"echo {NAME}")
    return say


def typed(path: Path) -> list[str]:
    root, *words = (path / "typed").read_text().splitlines()
    assert root == str(ROOT)
    return words


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: run("a.py", on="local", nproc_per_node=2), "a.py --on=local --nproc-per-node=2"),
        (lambda: run("a.py", live=True, verbose=False, image=None), "a.py --live"),
        (lambda: run("a.py", set=["a=1", "b=2"], env=("C",)), "a.py --set=a=1 --set=b=2 --env=C"),
        (
            lambda: run("a.py", hosts=["x", "y"], max_restarts=0),
            "a.py --hosts=x,y --max-restarts=0",
        ),
        (lambda: run(Path("job.yaml"), args="--x 'a b'"), "job.yaml -- --x a_b"),
        (lambda: run(again="latest", args=["--y", 2]), "--again=latest -- --y 2"),
        (lambda: hold(nnodes=2), "--name=held --nnodes=2"),
    ],
)
def test_a_call_types_what_a_person_would(call, words, says, tmp_path):
    done = call()
    start = ["hold"] if "held" in words else ["run", "--detach"]
    expected = [*start, f"--runs={tmp_path}/runs", *words.split(" ")]
    assert typed(tmp_path) == [word.replace("a_b", "a b") for word in expected]
    assert repr(done) in (f"<Nodes {NAME}>", f"<RunHandle {NAME} in {tmp_path}/runs/{NAME}>")


def test_a_job_is_a_file_and_runs_lie_where_the_call_or_the_shell_says(says, tmp_path, monkeypatch):
    says(f"cat $5 >{tmp_path}/job; echo launcher: on x >&2; echo launcher: y >&2; echo {NAME}")
    job = Job(command="a.py", name="digits")
    training = run(job, runs=tmp_path / "mine")
    assert (tmp_path / "job").read_text() == job.to_json()
    assert (training.notes, training.folder) == (("on x", "y"), tmp_path / "mine" / NAME)
    assert repr(job) == "<Job digits: a.py>"
    monkeypatch.setenv("LAUNCHER_RUNS", str(tmp_path / "shells"))
    assert run("a.py").folder == tmp_path / "shells" / NAME


@pytest.mark.parametrize(
    ("script", "kind", "what", "hint"),
    [
        ("echo note; echo error: no >&2; echo '  fix: a' >&2; exit 2", InputError, "no", "a"),
        ("echo error: no >&2; exit 3", TargetError, "no", ""),
        (f"echo error: full >&2; exit {int(DiskFullError.exit_code)}", DiskFullError, "full", ""),
        ("echo worse >&2; exit 1", LauncherError, "worse", ""),
        ("echo $5:1: bad >&2; exit 2", InputError, "Job: bad", ""),
    ],
)
def test_an_error_of_the_command_line_is_raised(script, kind, what, hint, says):
    says(script)
    with pytest.raises(LauncherError) as raised:
        run(Job(command="a.py"))
    error = raised.value
    assert (type(error), error.what.removeprefix("error: "), error.hint) == (kind, what, hint)


@pytest.mark.parametrize(
    ("script", "is_stopped"),
    [
        ("trap 'echo {}; kill $!; exit 130' INT; touch up; sleep 99 & wait", True),
        ("trap 'kill $!; exit 130' INT; touch up; sleep 99 & wait", False),
        ("trap '' INT; touch up; exec sleep 99", False),
    ],
    ids=["named late", "ends", "goes on"],
)
def test_an_interrupted_call_ends_what_it_has_started(
    script, is_stopped, says, make_run, tmp_path, monkeypatch
):
    says(script.format(NAME))
    record, _ = make_run()
    monkeypatch.setattr(python, "INTERRUPT_LIMIT_S", 0.5)

    def interrupt() -> None:
        wait_until((tmp_path / "up").exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run("a.py", runs=tmp_path)
    request = record.path / STOP_RUN_FILE
    assert request.exists() == is_stopped
    assert not is_stopped or request.read_text() != KEEP


def test_held_nodes_run_jobs_and_are_released_after_the_run_that_uses_them(
    says, make_run, on_local, tmp_path
):
    on_local(find_end=lambda *_: None, stop=lambda *_: None)
    held, _ = make_run(agent={"hold_idle_s": 60.0})
    user, _ = make_run(2.0, name="user-1")
    with hold(name="lab", runs=tmp_path) as nodes:
        nodes.run("a.py", on="local")
        assert typed(tmp_path)[2:] == [f"--runs={tmp_path}", "a.py", "--on=local", f"--in={NAME}"]
        using = Hold(held)
        using.enter(user.run_id)
    assert [one.read_outcome().cause for one in (held, user)] == ["stop-requested"] * 2
    using.leave()
    nodes.release()


def test_a_block_that_fails_stops_its_run_and_a_wait_ends_in_time(make_run, on_local, tmp_path):
    on_local(find_end=lambda *_: None, stop=lambda *_: None)
    record, _ = make_run()
    training = find(runs=tmp_path)
    assert isinstance(training, RunHandle)
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match=f"has not ended within {timeout} s; it goes on"):
            training.wait(timeout)
    with training:
        pass
    assert training.outcome is None
    with pytest.raises(ZeroDivisionError), training:
        raise ZeroDivisionError
    assert training.wait(0) == training.outcome == record.read_outcome()
