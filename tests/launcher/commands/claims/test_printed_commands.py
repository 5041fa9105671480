"""Every command that is printed to be typed is typed, as it was printed, in the same folder.

The options are those that a later command cannot guess: another kubeconfig, context and namespace,
another folder for runs, another kind than the job file's.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.commands.parsing.printed_commands import program_name
from launcher.contract import protocol
from tests.k8s.manifests_table import TABLE, manifest_of
from tests.launcher.fake_cluster import FakeCluster, pod

ROOT = Path(__file__).parents[4]
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
def test_the_logs_of_a_manifest_are_followed_right_after_it_was_applied(server, kubectl):
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
@pytest.mark.parametrize("keep", [False, True])
def test_the_command_behind_still_running_ends_the_job(keep, terminal, server, kubectl):
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


def test_a_program_in_a_folder_with_a_space_is_quoted(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/my code/.venv/bin/launcher"])
    assert program_name() == "'/my code/.venv/bin/launcher'"
