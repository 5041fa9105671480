"""``from launcher import Job, run``: real runs from scripts, threads, event loops and this test."""

import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher import InputError, Job, RunHandle, TargetError, find, list_runs, run
from launcher.job.file import parse_job, read_job
from launcher.job.spec import JobSpec
from launcher.yamlfile.source import parse_yaml
from tests.launcher.runner import ROOT, WAITING, Runner

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
    ("keys", "options", "kind", "words"),
    [
        ({"command": "trian.py"}, {"on": "local"}, InputError, "Job: command: found trian.py;"),
        ({}, {"on": "mars"}, InputError, "--on mars: no such target"),
        ({}, {"on": "docker"}, TargetError, "Docker"),
        ({}, {"on": "local", "resume": "gone"}, InputError, "no run 'gone'"),
    ],
)
def test_what_a_run_cannot_have_is_an_error_of_the_launcher(
    place, monkeypatch, keys, options, kind, words
):
    place.write(TRAIN)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    with pytest.raises(kind) as raised:
        run(tiny(**keys), **options)
    assert words in str(raised.value)
    assert raised.value.hint
    assert "launcher-job-" not in str(raised.value)
    assert list_runs() == []


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: run("train.py", nprocs=2), InputError, "--nprocs=2: no option of run"),
        (lambda: run("nothere.py"), InputError, "nothere.py: no such file"),
        (lambda: run(), InputError, "JOB is missing"),
        (lambda: run("train.py", args=3), TypeError, "int"),
        (lambda: Job("train.py"), TypeError, "positional"),  # type: ignore[call-arg]
    ],
)
def test_a_wrong_call_is_told_and_starts_nothing(place, call, kind, words):
    place.write(TRAIN)
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
