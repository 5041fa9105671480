"""A script of one's own on this machine: the same words as local processes and in Docker."""

import os
import shlex
import signal

import pytest

from launcher.contract.protocol import RUN_ID
from launcher.targets import process_table
from tests.launcher.own_script.claims.test_here import project
from tests.launcher.own_script.project import (
    ARGUMENTS,
    LOSSES,
    losses_in,
)
from tests.launcher.runner import WAITING, Runner
from tests.programs import run_program
from tests.waiting import wait_until

SHORT = """
import os, helper
print(helper.NAME, os.getcwd(), flush=True)
"""


def test_a_script_has_the_losses_that_it_has_under_torchrun(project):
    torchrun = [*("-m", "torch.distributed.run", "--standalone"), "--nproc-per-node", "4"]
    argv = [project.argv()[0], *torchrun, "train.py", *ARGUMENTS[1:]]
    plain = run_program(argv, cwd=project.folder, env=project.env, check=True)
    assert losses_in(plain.stdout) == LOSSES


def test_a_run_again_says_that_it_starts_in_a_copy_without_what_was_left_out(project):
    (project.folder / ".launcherignore").write_text("data.txt\n")
    (project.folder / "data.txt").write_text("here")
    (project.folder / "train.py").write_text(SHORT + "print(open('data.txt').read())\n")
    assert project("run", "train.py", "--on", "local", "--nproc-per-node", "1").returncode == 0
    told = project.fails(1, "run", "--again", "latest")
    (note,) = (line for line in told.splitlines() if "starts in " in line)
    run_id = project.outcome["run_id"]
    assert f"runs/{run_id}/code, a copy of the code of {first_run(project)}: " in note
    assert "what git ignores or .launcherignore names is not in it" in note


def first_run(project: Runner) -> str:
    runs = sorted((project.folder / "runs").glob("train-*"), key=lambda p: p.stat().st_ctime)
    return runs[0].name


def test_code_that_is_too_large_and_options_for_containers_are_noted(project):
    (project.folder / "train.py").write_text(SHORT)
    with (project.folder / "weights.bin").open("wb") as file:
        file.truncate(101 << 20)
    words = ("--on", "local", "--nproc-per-node", "1", "--image", "x:1")
    done = project.well("run", "train.py", *words)
    assert "--image and --code image are ignored: the nodes of this target are" in done.stderr
    (note,) = (line for line in done.stderr.splitlines() if "will not hold the code" in line)
    assert "--again cannot repeat this run" in note
    assert "101 MiB, more than 100 MiB; the largest files: 101 MiB weights.bin, 0 MiB" in note
    assert "fix: name data in .launcherignore" in note
    told = project.fails(2, "run", "--again", "latest")
    assert "keeps no code" in told
    assert len(project.run_ids()) == 1


def test_the_line_that_renders_a_resumed_run_names_the_run_that_it_resumed(project):
    (project.folder / "train.py").write_text(SHORT)
    words = ("run", "train.py", "--on", "local", "--nproc-per-node", "1")
    assert project(*words).returncode == 0
    first = first_run(project)
    done = project(*words, "--resume", "latest")
    assert f"nothing to resume: {first} has no checkpoint in " in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("  render it "))
    rendered = project(*shlex.split(line.partition(" launcher ")[2]))
    assert f"CHECKPOINT_DIR={project.folder}/runs/{first}/checkpoints" in rendered.stdout.replace(
        "'", ""
    )


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("local", "8"),
        pytest.param("docker", "None", marks=pytest.mark.docker),
    ],
)
def test_a_module_of_the_folder_gets_these_variables_and_no_standard_input(project, target, found):
    """As the table of docs/own-script.md says."""
    (project.folder / "pkg").mkdir()
    (project.folder / "pkg" / "train.py").write_text(
        "import helper, os, sys\n"
        "print(os.environ.get('FOO'), os.environ.get('BAR'), repr(sys.stdin.read()))\n"
    )
    project.env["FOO"] = "8"
    words = ("--on", target, "--nproc-per-node", "1", "--set", "env.BAR=9")
    done = project("run", "-m", "pkg.train", *words)
    assert done.stdout == f"{found} 9 ''\n", done.stderr
    assert project.outcome["run_id"].startswith("pkg-train-")
    assert "render -m pkg.train" in done.stderr


def test_a_report_names_the_nodes_that_run_and_those_that_were_killed(project):
    project.write(WAITING)
    words = ("run", "train.py", "--on", "local", "--nproc-per-node", "1", "--detach")
    run_id = project(*words).stdout.strip()
    run = project.folder / "runs" / run_id
    wait_until(lambda: (run / "up-0").exists())
    assert "  0.0: 1 attempt, running; starting " in project("report").stdout
    process_table.send(process_table.find(**{RUN_ID: run_id}), signal.SIGKILL)
    project.well("stop", "--grace", "0")
    assert "  0.0: 1 attempt, no report: it was killed, or its machine" in project("report").stdout
