"""``kubectl launcher ...``: kubectl finds a program of that name and hands its arguments on."""

import functools
import json
import os
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.commands.parsing import printed_commands as typed_commands
from tests.programs import run_program, write_python_program

ROOT = Path(__file__).parents[4]
RUN_ID = "digits-0a1b2c"
JOB = {
    "name": "digits",
    "command": ["-m", "train"],
    "nnodes": "1:2",
    "max_restarts": 3,
    "kubernetes": {"kind": "job", "checkpoint": "pvc/storage"},
}
Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def plugin(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> Typed:
    monkeypatch.setenv("LAUNCHER_HOSTS", "gpu[1-4]")
    return functools.partial(typed, is_plugin=True)


def test_the_package_brings_the_program():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-launcher"] == "launcher.__main__:kubectl_main"


@pytest.mark.parametrize(
    "words",
    [
        ("status", "digits"),
        ("status",),
        ("status", "digits", "-n", "team"),
        ("-n", "team", "status", "digits"),
        ("-nteam", "status", "digits"),
        ("status", "digits", "-nteam"),
        ("--context=fake", "--namespace", "team", "status", "digits"),
    ],
)
def test_kubectls_own_options_stand_before_or_behind_the_command(words, submitted, plugin):
    code, said = plugin(*words)
    assert code == 0, said
    assert f"{RUN_ID}: RUNNING on kubernetes" in said


def test_everything_is_on_the_cluster_without_being_said(submitted, plugin, tmp_path):
    code, said = plugin("ps")
    assert code == 0, said
    assert RUN_ID in said
    (tmp_path / "job.yaml").write_text(json.dumps(JOB))
    code, said = plugin("render", "job.yaml")
    assert code == 0, said
    assert "kind: Job" in said
    code, said = plugin("doctor", "job.yaml")
    assert "context fake" in said
    code, said = plugin("run", "job.yaml")
    assert code == 2
    assert "Job digits is in namespace team already" in said


def test_another_kubeconfig_is_that_of_one_command(submitted, plugin, tmp_path, monkeypatch):
    other = (tmp_path / "kubeconfig").rename(tmp_path / "other")
    before = os.environ["KUBECONFIG"]
    assert plugin("status", "digits", "--kubeconfig", str(other))[0] == 0
    assert os.environ["KUBECONFIG"] == before
    code, said = plugin("status", "digits", "--kubeconfig", str(tmp_path / "none"))
    assert code == 3
    assert f"{tmp_path}/none: no such file" in said
    assert "fix: export KUBECONFIG=FILE, or --kubeconfig FILE" in said


def test_latest_is_the_run_that_was_made_last_and_not_that_of_a_folder_here(
    submitted, plugin, tmp_path
):
    (tmp_path / "runs/local-1").mkdir(parents=True)
    (tmp_path / "runs/local-1/plan.json").write_text("{}")
    (tmp_path / "runs/latest").symlink_to("local-1")
    assert f"{RUN_ID}: RUNNING" in plugin("status")[1]


def test_commands_are_printed_as_kubectl_takes_them(submitted, plugin, tmp_path, monkeypatch):
    program = tmp_path / "kubectl-launcher"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(typed_commands.sys, "argv", [str(program)])
    said = plugin("status", "letters", "-n", "team")[1]
    assert "fix: kubectl launcher ps --namespace team --all lists the runs" in said


@pytest.mark.kubectl
def test_kubectl_finds_it_and_hands_the_exit_code_on(submitted, tmp_path):
    text = "from launcher.__main__ import kubectl_main\nkubectl_main()\n"
    write_python_program(tmp_path / "kubectl-launcher", text)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    def kubectl(*words: str) -> subprocess.CompletedProcess[str]:
        return run_program(["kubectl", "launcher", *words], cwd=tmp_path, env=env)

    done = kubectl("status", "digits", "-n", "team")
    assert done.returncode == 0, done.stderr
    assert f"{RUN_ID}: RUNNING on kubernetes" in done.stdout
    done = kubectl("status", "letters")
    assert done.returncode == 2
    assert "kubectl launcher ps --all lists the runs" in done.stderr
    assert "usage: kubectl launcher" in kubectl("--help").stdout
