"""``from launcher import Job, run``: real runs from scripts, threads, event loops and this test."""

import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher import (
    InputError,
    Job,
    LauncherError,
    RunHandle,
    TargetError,
    find,
    hold,
    list_runs,
    run,
)
from launcher.api import python as api
from launcher.contract.errors import DiskFullError
from launcher.contract.protocol import STOP_RUN_FILE
from launcher.follow.requests import KEEP
from launcher.job.file import parse_job, read_job
from launcher.job.spec import JobSpec
from launcher.targets.held.hold import Hold
from launcher.yamlfile.source import parse_yaml
from tests.launcher.runner import ROOT, WAITING, Runner
from tests.waiting import wait_until

TRAIN = """
import json, os, sys
print(os.environ["RANK"], *sys.argv[1:], flush=True)
print("to stderr", file=sys.stderr)
if os.environ["RANK"] == "0":
    open(os.environ["RUN_DIR"] + "/metrics.json", "w").write(json.dumps({"loss": 0.5}))
"""
WAITS = """
from launcher import Job, run
training = run(Job(command="train.py", nproc_per_node=1), on="local")
print(training.run_id, flush=True)
"""


@pytest.fixture
def place(launcher: Runner, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The current folder is this test's own; nothing may be left running in the end."""
    monkeypatch.chdir(launcher.folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return launcher


def tiny(**keys: object) -> Job:
    return Job(**{"command": "train.py", "nproc_per_node": 1, **keys})


def python(place: Runner, code: str) -> subprocess.Popen[bytes]:
    """A plain script in the place, which inherits nothing of this process."""
    (place.folder / "start.py").write_text(code)
    return subprocess.Popen(
        [sys.executable, "start.py"], cwd=place.folder, env=place.env, stdout=subprocess.PIPE
    )


def is_up(training: RunHandle) -> Callable[[], bool]:
    return (training.folder / "up-0").exists


# -- jobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("heavy", ["torch", "pydantic", "yaml", "psutil", "docker", "subprocess"])
def test_importing_the_package_imports_nothing_heavy(heavy):
    code = f"import launcher, sys; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.yaml")), ids=lambda path: path.name)
def test_a_job_takes_the_keys_of_a_job_file(path):
    keys = parse_yaml(path.read_text(), path.name).data
    assert Job(**keys).spec == read_job(path)


def test_a_job_takes_what_python_has_for_lists_and_paths():
    job = Job(name="a", command=("a.py", 0.1), workdir=Path("b"), env={"A": True, "B": 1.5})
    assert (job.spec.command, job.spec.workdir) == (("a.py", "0.1"), "b")
    assert job.spec.env == (("A", "true"), ("B", "1.5"))
    assert parse_job(job.to_json(), "job.json") == job.spec


def test_a_job_is_named_after_its_script_where_it_has_no_name():
    assert Job(command="src/My_train.py --lr 0.1").spec.name == "my-train"
    with pytest.raises(InputError) as raised:
        Job(command="torchrun train.py")
    assert "name" not in str(raised.value).splitlines()[0]


def test_all_mistakes_of_a_job_are_told_at_once_with_key_and_fix():
    with pytest.raises(InputError) as raised:
        Job(
            name="Tiny",
            command="torchrun train.py",
            nnodes="1:x",
            rdzv={"port": "29400", "conf": {"wait": 1}},
            mounts=["/data"],
            env={"API_TOKEN": ["a"]},
            nproc=2,
        )
    lines = str(raised.value).splitlines()
    keys = [line.split(": ")[1] for line in lines if line.startswith("Job: ")]
    expected = ["name", "command", "nnodes", "rdzv.port", "rdzv.conf.wait", "env.API_TOKEN"]
    assert keys == [*expected, "mounts.0", "nproc"]
    assert len([line for line in lines if line.startswith("  fix: ")]) == len(keys)
    for word in ("pydantic", "input_value"):
        assert word not in str(raised.value)


def test_editors_are_told_the_keys_of_a_job():
    assert list(inspect.signature(Job).parameters) == list(JobSpec.model_fields)


# -- runs -----------------------------------------------------------------------------------------


def test_a_run_is_followed_to_its_typed_outcome_and_found_again(place):
    place.write(TRAIN)
    training = run(tiny(command="train.py --lr 0.1", nnodes=2), on="local", args=["--x", 1])
    assert training.folder == place.folder / "runs" / training.run_id
    assert training.notes[0].startswith("running on local processes")
    shown = sorted(training.logs(follow=True))
    assert shown[0] == "[0/0] 0 --lr 0.1 --x 1"
    assert [line for line in shown if "stderr" not in line][1:] == ["[1/1] 1 --lr 0.1 --x 1"]
    outcome = training.wait(timeout=60)
    assert (outcome.state, outcome.cause, outcome.exit_code) == ("succeeded", "completed", 0)
    assert outcome.metrics == {"loss": 0.5}
    assert list(training.logs(rank=1)) == ["1 --lr 0.1 --x 1", "to stderr"]
    assert (training.status().state, training.report().cause) == ("succeeded", "completed")
    assert str(training.report()).startswith(f"{training.run_id}: SUCCEEDED on local")
    assert find().run_id == find("train").run_id == training.run_id
    assert [one.outcome for one in list_runs()] == [outcome]
    assert training.stop() == outcome


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: run("train.py", nprocs=2), InputError, "--nprocs=2: no option of run"),
        (lambda: run(tiny(command="trian.py")), InputError, "Job: command: found trian.py;"),
        (lambda: run("train.py", on="docker"), TargetError, "Docker"),
        (lambda: run(), InputError, "JOB is missing"),
        (lambda: run("train.py", args=3), TypeError, "int"),
        (lambda: Job("train.py"), TypeError, "positional"),  # type: ignore[call-arg]
    ],
)
def test_a_wrong_call_is_told_and_starts_nothing(place, call, kind, words, monkeypatch):
    place.write(TRAIN)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    with pytest.raises(kind, match=words):
        call()
    assert list_runs() == []


def test_the_callers_signals_streams_and_folder_stay_its_own(place, capfd):
    place.write(WAITING)
    signals = [signal.getsignal(number) for number in signal.valid_signals()]
    streams, threads = (sys.stdout, sys.stderr), threading.active_count()
    with run(tiny(), on="local") as training, pytest.raises(TimeoutError, match="it goes on"):
        training.wait(timeout=0.2)
    assert training.outcome is None
    assert training.stop(grace=5).cause == "stop-requested"
    assert [signal.getsignal(number) for number in signal.valid_signals()] == signals
    assert (sys.stdout, sys.stderr, threading.active_count()) == (*streams, threads)
    assert Path.cwd() == place.folder
    assert capfd.readouterr() == ("", "")


def test_a_folder_of_the_callers_called_like_a_library_is_not_imported(place):
    place.write(TRAIN)
    (place.folder / "yaml.py").write_text("raise SystemExit('the wrong one')")
    (place.folder / "launcher").mkdir()
    run(tiny(), on="local").stop()


# -- what a call types -----------------------------------------------------------------------------

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
    if "''" in script:  # Only the one that goes on is waited for in vain.
        monkeypatch.setattr(api, "INTERRUPT_LIMIT_S", 0.5)

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
    on_local(find_end=lambda *_: None)
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
