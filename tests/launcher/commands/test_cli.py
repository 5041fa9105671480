"""The command line as a person types it: one process a test, its exit code and its words."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from launcher import __version__
from launcher.commands import cli
from tests.programs import run_program

ROOT = Path(__file__).parents[3]
JOB = "name: tiny\ncommand: [train.py]\nnproc_per_node: 1\n"


def launcher(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, "-m", "launcher", *argv],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.py").touch()
    return tmp_path


def test_what_is_imported_before_a_ctrl_c_is_heard_takes_no_time():
    code = (
        "import sys; was = {*sys.modules}; import launcher.__main__; print(*{*sys.modules} - was)"
    )
    # Without site: what it has imported already, here or elsewhere, would not be seen.
    argv = [sys.executable, "-S", "-c", code]
    done = run_program(argv, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    heavy = {
        "argparse",
        "dataclasses",
        "inspect",
        "pathlib",
        "re",
        "typing",
        "launcher.commands.cli",
    }
    assert not heavy & {*done.stdout.split()}, done.stdout
    assert "launcher.__main__" in done.stdout.split(), done.stderr


def test_a_script_whose_name_no_run_may_have_gets_one_by_an_option(tmp_path):
    (tmp_path / "обучение.py").touch()
    argv = ("render", "обучение.py", "--on", "local", "--json")
    assert json.loads(launcher(*argv, cwd=tmp_path).stdout)["job_name"] == "job"
    named = launcher(*argv, "--set", "name=speech", cwd=tmp_path)
    assert json.loads(named.stdout)["job_name"] == "speech"


@pytest.mark.parametrize("command", ["run", "render"])
def test_help_tells_how_many_processes_are_started_unasked(command, tmp_path):
    said = " ".join(launcher(command, "--help", cwd=tmp_path).stdout.split())
    assert "(default: auto, one for each GPU of the node, without GPUs one for each" in said


def test_render_prints_a_script_and_does_nothing(folder):
    done = launcher("render", "job.yaml", "--on", "local", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/sh\n")
    assert "agent.pyz" in done.stdout
    assert not (folder / "runs").exists()


def test_render_as_json_prints_the_plan(folder):
    argv = ["render", "job.yaml", "--on", "local", "--nnodes", "2", "--json", "--", "--lr", "1"]
    plan = json.loads(launcher(*argv, cwd=folder).stdout)
    assert len(plan["nodes"]) == 2
    assert plan["nodes"][1]["command"] == ["train.py", "--lr", "1"]


def test_options_are_taken_with_underscores_too_as_by_torchrun(folder):
    argv = ["render", "job.yaml", "--on=local", "--nnodes=2", "--nproc_per_node", "3", "--json"]
    said = launcher(*argv, "--max_restarts=4", "--env=A_B=c_d", cwd=folder)
    node = json.loads(said.stdout)["nodes"][1]
    assert (node["nproc_per_node"], node["max_restarts"]) == (3, 4)
    assert ["A_B", "c_d"] in node["env"]


def test_values_of_secrets_are_never_rendered(folder):
    (folder / "job.yaml").write_text(JOB + "secrets: [API_TOKEN]\n")
    for form in ([], ["--json"]):
        done = launcher("render", "job.yaml", "--on", "local", *form, cwd=folder, API_TOKEN="s3cr")
        assert "API_TOKEN" in done.stdout
        assert "s3cr" not in done.stdout + done.stderr


def test_env_takes_values_of_this_shell_and_hides_credentials(folder):
    (folder / "job.yaml").write_text(JOB + "secrets: [API_TOKEN]\nenv: {A: 1}\n")
    options = ("--env", "A=2=3", "--env", "B", "--env", "API_TOKEN", "--env", "WANDB_API_KEY")
    shell = {"B": "from shell", "API_TOKEN": "s3cr", "WANDB_API_KEY": "s3cr"}
    argv = ("render", "job.yaml", "--on", "local", "--json", *options)
    done = launcher(*argv, cwd=folder, **shell)
    node = json.loads(done.stdout)["nodes"][0]
    assert {"A": "2=3", "B": "from shell"}.items() <= dict(node["env"]).items()
    assert node["secrets"] == ["API_TOKEN", "WANDB_API_KEY"]
    assert "s3cr" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("NOT_SET", "--env NOT_SET: not set in this shell\n  fix: --env NOT_SET=VALUE"),
        ("RANK=1", "names of your own; torchrun sets this one"),
        ("1X=s3cr", "env.1X"),
    ],
)
def test_what_env_cannot_take_is_told_without_the_value(folder, given, told):
    done = launcher("render", "job.yaml", "--env", given, cwd=folder)
    assert done.returncode == 2
    assert told in done.stderr
    assert "s3cr" not in done.stderr


def test_ps_of_an_empty_folder_says_so(folder):
    assert "no runs" in launcher("ps", cwd=folder).stdout
    assert json.loads(launcher("ps", "--all", "--json", cwd=folder).stdout) == []


def test_schema_is_the_shipped_one(folder):
    printed = json.loads(launcher("docs", "schema", cwd=folder).stdout)
    assert printed == json.loads((ROOT / "jobs" / "job.schema.json").read_text())


def test_the_version_is_printed_with_its_commit_and_the_torch_of_local_runs(folder):
    told = launcher("--version", cwd=folder).stdout
    commit = r"([0-9a-f]{12}, in a checkout|unknown)"
    torch = re.escape(f"torch {version('torch')} ({sys.executable})")
    assert re.fullmatch(rf"launcher {re.escape(__version__)} \(commit {commit}\)\n{torch}\n", told)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(((name, "latest"), "interrupted\n") for name in ("top", "profile", "logs", "stacks")),
        (("doctor", "train.py"), "interrupted; nothing was left running\n"),
    ],
)
def test_an_interrupt_of_a_command_about_a_run_says_nothing_of_what_is_left(
    words, said, monkeypatch, capsys
):
    def interrupt(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load", lambda handler: interrupt)
    assert cli.run_command([*words]) == 130
    assert capsys.readouterr().err == said
