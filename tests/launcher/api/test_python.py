"""``from launcher import Job, run``: real runs from scripts, threads, event loops and this test."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher import InputError, Job, LauncherError, RunHandle, TargetError, find, list_runs, run
from launcher.contract.protocol import RUN_ID
from launcher.job.file import parse_job, read_job
from launcher.job.spec import JobSpec
from launcher.runs.folder import RunFolder
from launcher.targets import process_table
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
def test_importing_the_package_imports_nothing_heavy(heavy: str) -> None:
    code = f"import launcher, sys; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").glob("*.yaml")), ids=lambda path: path.name)
def test_a_job_takes_the_keys_of_a_job_file(path: Path) -> None:
    keys = parse_yaml(path.read_text(), path.name).data
    assert Job(**keys).spec == read_job(path)


def test_a_job_takes_what_python_has_for_lists_and_paths() -> None:
    job = Job(name="a", command=("a.py", 0.1), workdir=Path("b"), env={"A": True, "B": 1.5})
    assert (job.spec.command, job.spec.workdir) == (("a.py", "0.1"), "b")
    assert job.spec.env == (("A", "true"), ("B", "1.5"))
    assert parse_job(job.to_json(), "job.json") == job.spec


def test_a_job_is_named_after_its_script_where_it_has_no_name() -> None:
    assert Job(command="src/My_train.py --lr 0.1").spec.name == "my-train"
    with pytest.raises(InputError) as raised:
        Job(command="torchrun train.py")
    assert "name" not in str(raised.value).splitlines()[0]


def test_all_mistakes_of_a_job_are_told_at_once_with_key_and_fix() -> None:
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


def test_editors_are_told_the_keys_of_a_job() -> None:
    assert list(inspect.signature(Job).parameters) == list(JobSpec.model_fields)


# -- runs -----------------------------------------------------------------------------------------


def test_a_run_is_followed_to_its_typed_outcome_and_found_again(place: Runner) -> None:
    place.write(TRAIN)
    training = run(tiny(command="train.py --lr 0.1", nnodes=2), on="local", args=["--x", 1])
    assert training.folder == place.folder / "runs" / training.run_id
    assert training.notes[0].startswith("running on local processes")
    shown = sorted(training.logs(follow=True))
    assert shown[0] == "[0/0] 0 --lr 0.1 --x 1"
    assert [line for line in shown if "stderr" not in line][1:] == ["[1/1] 1 --lr 0.1 --x 1"]
    outcome = training.wait(timeout=60)
    assert (outcome.state, outcome.reason, outcome.exit_code) == ("succeeded", "completed", 0)
    assert outcome.metrics == {"loss": 0.5}
    assert list(training.logs(rank=1)) == ["1 --lr 0.1 --x 1", "to stderr"]
    assert (training.status().state, training.report().reason) == ("succeeded", "completed")
    assert str(training.report()).startswith(f"{training.run_id}: succeeded on local")
    assert find().run_id == find("train").run_id == training.run_id
    assert [one.outcome for one in list_runs()] == [outcome]
    assert training.stop() == outcome


def test_a_failed_training_is_an_outcome_that_names_its_rank_in_one_line(place: Runner) -> None:
    code = "import os\nif os.environ['RANK'] == '1': raise ValueError('too hot\\nand more')\n"
    place.write(code)
    training = run(tiny(nproc_per_node=2), on="local")
    outcome = training.wait(timeout=60)
    assert (outcome.state, outcome.exit_code) == ("failed", 1)
    told = training.run_id
    assert repr(training.status()) == f"<RunStatus {told}: failed on local>"
    assert repr(training.report()) == f"<Postmortem {told}: failed on local, training-failed>"
    # The other one ends by itself, or is ended before.
    shown = "<FailureReport rank 1 on node 0: ValueError: too hot"
    assert repr(outcome.failure) in (f"{shown}>", f"{shown}; 1 more failed after it>")
    assert str(outcome.failure).startswith("first failure: rank 1 on node 0: ValueError: too hot")
    assert "\n  | and more" in str(outcome.failure)
    assert len(repr(outcome)) < 1000


@pytest.mark.parametrize("job", ["job.yaml", Path("train.py")], ids=str)
def test_a_job_file_or_script_runs_with_options_as_on_the_command_line(
    place: Runner, job: str | Path
) -> None:
    place.write(TRAIN)
    training = run(job, on="local", nproc_per_node=2, set=["env.A=1", "stop_grace_s=3"])
    plan = RunFolder(training.folder).read_plan()
    assert plan.nodes[0].nproc_per_node == 2
    assert plan.stop_grace_s == 3
    training.stop()


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
    place: Runner,
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, object],
    options: dict[str, object],
    kind: type[LauncherError],
    words: str,
) -> None:
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
def test_a_wrong_call_is_told_and_starts_nothing(
    place: Runner, call: Callable[[], object], kind: type[Exception], words: str
) -> None:
    place.write(TRAIN)
    with pytest.raises(kind, match=words):
        call()
    assert list_runs() == []


@pytest.mark.slow
def test_an_earlier_run_is_repeated_from_python(place: Runner) -> None:
    place.write(TRAIN)
    first = run(tiny(), on="local", args="--x 'a b'")
    first.wait(timeout=60)
    second = run(again="latest", args=["--y", 2])
    assert second.wait(timeout=60).state == "succeeded"
    assert next(second.logs(rank=0)) == "0 --x a b --y 2"


def test_the_callers_signals_streams_and_folder_stay_its_own(
    place: Runner, capfd: pytest.CaptureFixture[str]
) -> None:
    place.write(WAITING)
    signals = [signal.getsignal(number) for number in signal.valid_signals()]
    streams, threads = (sys.stdout, sys.stderr), threading.active_count()
    with run(tiny(), on="local") as training, pytest.raises(TimeoutError, match="it goes on"):
        training.wait(timeout=0.2)
    assert training.outcome is None
    assert training.stop(grace=5).reason == "stop-requested"
    assert [signal.getsignal(number) for number in signal.valid_signals()] == signals
    assert (sys.stdout, sys.stderr, threading.active_count()) == (*streams, threads)
    assert Path.cwd() == place.folder
    assert capfd.readouterr() == ("", "")


def test_a_folder_of_the_callers_called_like_a_library_is_not_imported(place: Runner) -> None:
    place.write(TRAIN)
    (place.folder / "yaml.py").write_text("raise SystemExit('the wrong one')")
    (place.folder / "launcher").mkdir()
    run(tiny(), on="local").stop()


def test_a_stop_takes_no_longer_than_the_grace_that_it_is_given(place: Runner) -> None:
    place.write(WAITING.replace("SIG_DFL", "SIG_IGN"))
    training = run(tiny(stop_grace_s=120), on="local")
    wait_until(is_up(training))
    asked_at = time.monotonic()
    assert training.stop(grace=1).reason == "stop-requested"
    assert time.monotonic() - asked_at < 25, "without the kill of its own it takes 31 s"
    assert place.processes() == []


@pytest.mark.slow
def test_an_elastic_run_is_scaled(place: Runner) -> None:
    place.write(WAITING)
    training = run(tiny(nnodes="1:2"), on="local")
    with contextlib.suppress(ZeroDivisionError), training:
        wait_until(is_up(training))
        with pytest.raises(InputError, match="from 1 to 2"):
            training.scale(3)
        training.scale(1)
        wait_until(lambda: len(training.status().nodes) == 1)
        raise ZeroDivisionError
    assert training.outcome is not None
    assert training.outcome.reason == "stop-requested"
    assert place.processes() == []


# -- whoever started it has gone, or was interrupted ----------------------------------------------


def test_a_run_goes_on_to_its_end_after_its_callers_death(place: Runner) -> None:
    place.write("import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)\n")
    caller = python(place, WAITS + "training.wait()\n")
    assert caller.stdout is not None
    training = find(caller.stdout.readline().decode().strip())
    caller.kill()
    caller.wait()
    assert training.outcome is None
    assert training.status().launcher_pid is not None
    (place.folder / "go").touch()
    assert training.wait(timeout=60).state == "succeeded"


def test_an_interrupted_with_block_stops_the_run(place: Runner) -> None:
    place.write(WAITING)
    caller = python(place, WAITS + "with training:\n    training.wait()\n")
    assert caller.stdout is not None
    training = find(caller.stdout.readline().decode().strip())
    wait_until(is_up(training))
    caller.send_signal(signal.SIGINT)
    assert caller.wait() != 0
    assert training.outcome is not None
    assert training.outcome.reason == "stop-requested"


def interrupted_at(place: Runner, slow: str, reached: Path) -> None:
    """Runs ``slow`` in the launcher that a script starts, and interrupts that once it is there."""
    (place.folder / "late").mkdir()
    (place.folder / "late/late.py").write_text(slow)
    (place.folder / "late/sitecustomize.py").write_text(
        "import sys\nif 'run' in sys.argv: import late\n"
    )
    place.env["PYTHONPATH"] += os.pathsep + str(place.folder / "late")
    caller = python(place, WAITS)
    wait_until(reached.exists)
    caller.send_signal(signal.SIGINT)
    assert caller.wait() != 0
    training = find()
    assert training.wait(timeout=60).reason == "stop-requested"
    assert process_table.find(**{RUN_ID: training.run_id}) == ()


def test_what_was_being_started_ends_when_the_start_is_interrupted(place: Runner) -> None:
    place.write(WAITING)
    # The follower's submission takes a while, as that of an image to pull does.
    slow = f"""
import launcher.targets.local.target as local, pathlib, time
submit = local.LocalTarget.submit
def late(self, plan):
    pathlib.Path({str(place.folder / "submitting")!r}).touch()
    time.sleep(1)
    submit(self, plan)
local.LocalTarget.submit = late
"""
    interrupted_at(place, slow, place.folder / "submitting")


@pytest.mark.parametrize("moment", ["before its id is told", "after it"])
def test_a_run_whose_start_is_interrupted_late_ends_all_the_same(
    place: Runner, moment: str
) -> None:
    place.write(WAITING)
    reached = place.folder / "reached"
    slow = f"""
import pathlib, time
import launcher.commands.run as jobs
def wait(*words, **options):
    print(*words, **options)
    pathlib.Path({str(reached)!r}).touch()
    time.sleep(1)
if {moment.startswith("before")}:
    jobs._note_left_behind = lambda *_: wait(end="")
else:
    jobs.print = wait
"""
    interrupted_at(place, slow, reached)


# -- a notebook, and the page ---------------------------------------------------------------------


class Notebook:
    """A real Jupyter kernel, in a place of its own."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(cwd=str(folder), env=env)

    def start(self, code: str) -> str:
        started: str = self._client.execute(code)
        return started

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        self._manager.restart_kernel(now=True)
        self._client.wait_for_ready(timeout=60)

    def finish(self, started: str) -> str:
        """The cell's result, or the name of its exception."""
        result = ""
        while True:
            message = self._client.get_iopub_msg(timeout=120)
            content = message["content"]
            if message["parent_header"].get("msg_id") != started:
                continue
            if message["msg_type"] == "execute_result":
                result = content["data"]["text/plain"]
            elif message["msg_type"] == "error":
                result = content["ename"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return result

    def wait_for_output(self, text: str) -> None:
        while self._client.get_iopub_msg(timeout=120)["content"].get("text") != text:
            pass

    def __call__(self, code: str) -> str:
        return self.finish(self.start(code))

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(place: Runner) -> Iterator[Notebook]:
    pytest.importorskip("ipykernel")
    opened = Notebook(place.folder, place.env)
    yield opened
    opened.close()


@pytest.mark.slow
def test_interrupt_and_restart_of_a_notebook_leave_the_run_alone(
    place: Runner, notebook: Notebook
) -> None:
    place.write(WAITING)
    notebook(WAITS)
    training = find()
    wait_until(is_up(training))
    cell = notebook.start("print('waiting', flush=True); training.wait()")
    notebook.wait_for_output("waiting\n")
    notebook.interrupt()
    assert notebook.finish(cell) == "KeyboardInterrupt"
    assert notebook("training.outcome, training.status().state") == "(None, 'running')"
    notebook.restart()
    assert training.outcome is None
    assert notebook("from launcher import find; find().stop().reason") == "'stop-requested'"


SCRIPTS, _, CELLS = (ROOT / "docs/python.md").read_text().partition("\n## In a notebook\n")


def blocks(text: str) -> list[str]:
    return [part.partition("```")[0] for part in text.split("```python\n")[1:]]


@pytest.mark.slow  # each call of theirs is tested here
def test_the_scripts_of_the_page_work(place: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    train, start, mistakes, sweep = blocks(SCRIPTS)
    exec(compile(mistakes, "docs/python.md", "exec"), {})
    assert capsys.readouterr().out.strip() in SCRIPTS
    (place.folder / "train.py").write_text(train)
    told = []
    for script in (start, sweep):
        caller = python(place, script)
        told.append(caller.communicate(timeout=250)[0].decode().splitlines())
        assert caller.returncode == 0
    assert told[0][-1] == "succeeded completed 0.30000001192092896"
    assert told[1] == ["{'loss': 0.10000000149011612}", "{'loss': 0.20000000298023224}"]


@pytest.mark.slow  # the test above has a notebook
def test_the_notebook_of_the_page_works(notebook: Notebook) -> None:
    shown = [notebook(cell) for cell in blocks(CELLS)]
    assert shown[-1] == "({'ranks': '2'}, ['0', '1'])"
    assert json.loads((find().folder / "metrics.json").read_text()) == {"ranks": "2"}
