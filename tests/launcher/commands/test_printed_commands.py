"""Every command that is printed to be typed is typed, as it was printed, in the same folder.

The options are those that a later command cannot guess: another kubeconfig, context and namespace,
another folder for runs, another kind than the job file's.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.commands.printed_commands import program_name
from launcher.contract import protocol
from tests.k8s.manifests_table import TABLE, manifest_of
from tests.launcher.cluster_run import agents_outcome
from tests.launcher.fake_cluster import FakeCluster, ended, pod

ROOT = Path(__file__).parents[3]
INDEX = "batch.kubernetes.io/job-completion-index"
RUNS = "all my runs"
JOB_FILE = """
name: digits
command: [-m, train]
nnodes: 2
kubernetes: {checkpoint: pvc/storage}
"""
OF_JOB = (
    *("--kind", "job", "--image", "example/other:2", "--nnodes", "1:2", "--max-restarts", "3"),
    *("--set", "env.GREETING=good day", "--set", "nproc_per_node=1"),
)
PROGRAM = "python -m launcher"
Shell = Callable[[str], subprocess.Popen[str]]
COMMAND = re.compile(rf"{PROGRAM} (?:logs|status|stop|scale|report|ps|run|render|doctor)\b.*")
PROSE = re.compile(r" (?:to|lists|shows|removes|tells|says)\b|[,;)]| {2}|$")
"""Where the words begin that stand behind a command in a sentence."""


def commands_in(text: str) -> list[str]:
    """What a person would mark and paste."""
    found: list[str] = []
    for line in text.splitlines():
        while match := COMMAND.search(line):
            rest = match[0]
            end = PROSE.search(rest)
            assert end is not None, "every text has an end"
            found.append(rest[: end.start()])
            line = rest[end.start() :]
    return list(dict.fromkeys(found))


class Terminal:
    """A shell in a folder with a job file, and the options that a person gives there."""

    def __init__(self, folder: Path, server: FakeCluster) -> None:
        self.folder, self.server = folder, server
        (folder / "job file.yaml").write_text(JOB_FILE)
        server.write_kubeconfig(folder / "their config")
        server.namespaces.add("mine")
        self.of_place = ("--kubeconfig", "their config", "--context", "other", "-n", "mine")
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "KUBECONFIG": "/no/such/file"}
        process = subprocess.Popen(
            [sys.executable, "-m", "launcher", *words],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def run_job(self) -> subprocess.Popen[str]:
        """A run with all the options, once its job is there."""
        words = ("run", "job file.yaml", "--on", "kubernetes", "--runs", RUNS)
        process = self.start(*words, *self.of_place, *OF_JOB, "--", "--epochs=1")
        self.server.until(lambda: ("jobs", "digits") in self.server.objects)
        return process

    def type(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        text, _ = process.communicate(timeout=150)
        assert "Traceback" not in text
        return process.returncode, text

    def paste(self, command: str, code: int = 0) -> str:
        """Types a command that was printed; it has to do what it says and end with ``code``."""
        words = shlex.split(command.removeprefix(f"{PROGRAM} "))
        ended_with, text = self.type(*words)
        assert ended_with == code, f"{command}\n{text}"
        return text

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()


@pytest.fixture
def terminal(server: FakeCluster, tmp_path: Path) -> Iterator[Terminal]:
    folder = tmp_path / "a folder"
    folder.mkdir(exist_ok=True)
    made = Terminal(folder, server)
    yield made
    made.close()


def run_id_of(server: FakeCluster) -> str:
    return str(server.objects["jobs", "digits"]["metadata"]["labels"][protocol.LABEL_RUN_ID])


def put_pod(server: FakeCluster, **fields: Any) -> None:
    labels = {protocol.LABEL_RUN_ID: run_id_of(server), INDEX: "0"}
    server.put("pods", pod("digits-0-a", labels, **fields))


def collect_garbage(server: FakeCluster) -> threading.Thread:
    """As the controllers do: the pod goes after its job."""

    def collect() -> None:
        server.until(lambda: ("jobs", "digits") not in server.objects)
        if ("pods", "digits-0-a") in server.objects:
            server.log("digits-0-a", ended=True)
            server.remove("pods", "digits-0-a")

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    return thread


def fail(server: FakeCluster, process: subprocess.Popen[str]) -> str:
    """The run's pod and job fail; what its launcher said in all."""
    told = agents_outcome(at=2.0, message="ValueError: no data", reason="training-failed")
    put_pod(server)
    server.log("digits-0-a", ("2026-01-01T00:00:01Z", "[0/0] no data at all"), ended=True)
    put_pod(server, phase="Failed", state=ended(1, message=told))
    job = server.objects["jobs", "digits"]
    server.put("jobs", {**job, "status": {"conditions": [{"type": "Failed", "status": "True"}]}})
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 1, text
    return text


@pytest.mark.slow
def test_what_a_failed_run_prints_is_typed(terminal: Terminal, server: FakeCluster) -> None:
    text = fail(server, terminal.run_job())
    run_id = run_id_of(server)
    (log,) = re.findall(r"^ +log: (.*)$", text, re.MULTILINE)
    assert "no data at all" in (terminal.folder / log).read_text()
    commands = commands_in(text)
    kinds = [command.split()[3] for command in commands]
    assert sorted(kinds) == ["logs", "render", "report", "stop"]
    by_kind = dict(zip(kinds, commands, strict=True))
    assert "[0/0] no data at all" in terminal.paste(by_kind["logs"])
    assert f"{run_id}: failed" in terminal.paste(by_kind["report"])
    rendered = terminal.paste(by_kind["render"])
    assert all(part in rendered for part in ("kind: Job", "other:2", "--epochs=1", "good day"))
    again = terminal.type("run", "job file.yaml", "--on", "kubernetes", "--runs", RUNS,
                          *terminal.of_place, *OF_JOB)  # fmt: skip
    assert again[0] == 2
    attach, replace = commands_in(again[1])
    assert (attach.split()[3], replace.split()[3]) == ("logs", "stop")
    # Followed to its end, a failed run's logs end with its code.
    assert "[0/0] no data at all" in terminal.paste(attach, code=1)
    gone = collect_garbage(server)
    terminal.paste(by_kind["stop"])
    gone.join(60)
    assert ("jobs", "digits") not in server.objects


@pytest.mark.slow
def test_what_detached_and_orphaned_runs_print_is_typed(
    terminal: Terminal, server: FakeCluster
) -> None:
    words = ("run", "job file.yaml", "--on", "kubernetes", "--runs", RUNS, "--detach")
    code, text = terminal.type(*words, *terminal.of_place, *OF_JOB)
    assert code == 0, text
    run_id = run_id_of(server)
    put_pod(server)
    server.log("digits-0-a", ("2026-01-01T00:00:01Z", "[0/0] up"), ended=True)
    (follow,) = commands_in(text)
    attached = terminal.start(*shlex.split(follow.removeprefix(f"{PROGRAM} ")))
    where = ("--runs", RUNS, "--kubeconfig", "their config")
    code, text = terminal.type("scale", run_id, "1", *where)
    assert code == 0, text
    for command in commands_in(text):
        terminal.paste(command)
    code, text = terminal.type("scale", run_id, "9", *where)
    assert code == 2
    assert "--resume" not in text
    assert [command.split()[3] for command in commands_in(text)] == ["stop"]
    gone = collect_garbage(server)
    code, text = terminal.type("stop", run_id, *where)
    assert code == 0, text
    gone.join(60)
    assert "[0/0] up" in attached.communicate(timeout=60)[0]
    # Nothing of the run is left on the cluster, whose runs a kubeconfig would ask for.
    here = ("--runs", RUNS)
    for words in (("ps", *here), ("status", "letters", *here), ("scale", run_id, "1", *here)):
        _, text = terminal.type(*words)
        listed = commands_in(text)
        assert listed, text
        for command in listed:
            assert run_id in terminal.paste(command) or "--all" not in command


@pytest.mark.slow
def test_what_is_printed_of_a_run_without_a_folder_is_typed(
    terminal: Terminal, server: FakeCluster
) -> None:
    text = fail(server, terminal.run_job())
    (folder,) = [path for path in (terminal.folder / RUNS).iterdir() if not path.is_symlink()]
    for path in (terminal.folder / RUNS).iterdir():
        path.rename(terminal.folder / path.name)
    for verb in ("status", "report"):
        code, text = terminal.type(verb, "digits", *terminal.of_place)
        assert code == 0, text
        (shows,) = commands_in(text)
        assert (
            f"logs --kubeconfig 'their config' --context other --namespace mine {folder.name}"
            in shows
        )
        assert "no data at all" in terminal.paste(shows)


def test_what_a_run_of_this_machine_prints_is_typed(terminal: Terminal) -> None:
    (terminal.folder / "train me.py").write_text(
        "import json, os, pathlib, sys\n"
        "print('hello', os.environ['GREETING'], sys.argv[1:])\n"
        "pathlib.Path(os.environ['RUN_DIR'], 'metrics.json').write_text(json.dumps({'steps': 9}))\n"
    )
    (terminal.folder / "job file.yaml").write_text("name: own\ncommand: [train me.py]\nnnodes: 2\n")
    code, text = terminal.type(
        *("run", "job file.yaml", "--on", "local", "--runs", RUNS, "--nnodes", "1"),
        *("--set", "env.GREETING=good day", "--", "--epochs=1", "a b"),
    )
    assert code == 0, text
    first = "hello good day ['--epochs=1', 'a b']"
    assert first in text
    # Beside it, runs of others on this machine whose launchers have died may be named.
    told = [line for line in text.splitlines() if "left behind" not in line]
    logs, train_on, render = commands_in("\n".join(told))
    assert first in terminal.paste(logs)
    again = terminal.paste(train_on)
    assert first in again
    assert "nnodes 1 x" in again
    assert "good day" in terminal.paste(render)


# -- kubectl's own --------------------------------------------------------------------------------


@pytest.fixture
def kubectl(server: FakeCluster, tmp_path: Path) -> Iterator[Shell]:
    """Starts what is printed for kubectl, in a shell in the same folder."""
    server.lets_anybody_in = True
    (tmp_path / "a folder").mkdir(exist_ok=True)
    kubeconfig = str(server.write_kubeconfig(tmp_path / "kubeconfig"))
    started: list[subprocess.Popen[str]] = []

    def start(line: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["sh", "-c", line],
            cwd=tmp_path / "a folder",
            env={**os.environ, "HOME": str(tmp_path), "KUBECONFIG": kubeconfig},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.mark.kubectl
def test_the_logs_of_a_manifest_are_followed_right_after_it_was_applied(
    server: FakeCluster, kubectl: Shell
) -> None:
    opening = manifest_of(**TABLE["job-elastic"]).opening
    (line,) = [line for line in opening if "kubectl logs" in line]
    follows = kubectl(line)
    server.until(lambda: server.asked("GET", "/pods"))
    labels = {protocol.LABEL_JOB: "digits"}
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    for index in range(2):
        server.put("pods", pod(f"digits-{index}", labels, phase="Pending", state=waiting))
    server.until(lambda: server.asked("GET", "/log"))
    for index in range(2):
        server.put("pods", pod(f"digits-{index}", labels))
        server.log(f"digits-{index}", ("2026-01-01T00:00:01Z", f"from {index}"), ended=True)
    out, _ = follows.communicate(timeout=60)
    assert follows.returncode == 0
    assert "from 0" in out
    assert "from 1" in out


@pytest.mark.kubectl
def test_the_command_that_resumes_a_kept_run_resumes_it(
    terminal: Terminal, server: FakeCluster, kubectl: Shell
) -> None:
    words = ("run", "job file.yaml", "--on", "kubernetes", "--detach", "--runs", RUNS)
    code, text = terminal.type(*words, *terminal.of_place, *OF_JOB)
    assert code == 0, text
    where = ("--runs", RUNS, "--kubeconfig", "their config")
    code, text = terminal.type("stop", "--keep", *where)
    assert code == 0, text
    assert server.objects["jobs", "digits"]["spec"]["suspend"] is True
    done = kubectl(text.partition("resume it: ")[2].splitlines()[0])
    assert done.communicate(timeout=60)[1] == ""
    assert done.returncode == 0
    assert server.objects["jobs", "digits"]["spec"]["suspend"] is False


@pytest.mark.kubectl
@pytest.mark.parametrize("keep", [False, True])
def test_the_command_behind_still_running_ends_the_job(
    keep: bool, terminal: Terminal, server: FakeCluster, kubectl: Shell
) -> None:
    words = ("run", "job file.yaml", "--on", "kubernetes", "--detach", "--runs", RUNS)
    code, text = terminal.type(*words, *terminal.of_place, *OF_JOB)
    assert code == 0, text
    server.denied |= {("delete", "jobs"), ("patch", "jobs")}
    where = ("--runs", RUNS, "--kubeconfig", "their config")
    code, text = terminal.type("stop", *(["--keep"] if keep else []), *where)
    assert code == 3, text
    assert "STILL RUNNING" in text
    server.denied.clear()
    done = kubectl(text.partition("fix: ")[2].splitlines()[0])
    assert done.communicate(timeout=60)[1] == ""
    assert done.returncode == 0
    if keep:
        assert server.objects["jobs", "digits"]["spec"]["suspend"] is True
    else:
        assert ("jobs", "digits") not in server.objects


def test_a_program_in_a_folder_with_a_space_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/my code/.venv/bin/launcher"])
    assert program_name() == "'/my code/.venv/bin/launcher'"
