"""What a command imports and makes: it answers at once by leaving out what it does not need."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.contract.causes import Cause
from launcher.contract.ending import Ending
from launcher.follow.loop import write_outcome
from launcher.plan.launch_plan import LaunchPlan
from launcher.runs.folder import RunFolder
from tests.programs import run_program

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
before = {*sys.modules}
import launcher.__main__
from launcher.commands.cli import run_command
try:
    code = run_command(sys.argv[1:])
except SystemExit as ending:
    code = ending.code
assert code == 0, code
print(*({*sys.modules} - before), file=sys.stderr)
"""
JOBS = {"pydantic", "yaml"}
ENGINES = {"torch", "docker", "kubernetes", "psutil", "requests", "urllib3"}
HEAVY = {"asyncio", "numpy", "rich", "argcomplete", "email", "http", "ssl", "xml", "tarfile"}
OF_WORK = {"dataclasses", "inspect", "json", "tempfile", "difflib", "subprocess", "socket"}
"""What a command needs for its work, and not to say what it takes."""


def imported(folder: Path, *words: str) -> set[str]:
    """Top-level packages, and modules of the launcher, that a command imports."""
    done = run_program(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    names = done.stderr.splitlines()[-1].split()
    return {name if name.startswith("launcher.") else name.partition(".")[0] for name in names}


@pytest.fixture
def folder(tmp_path: Path, make_plan: Callable[..., LaunchPlan]) -> Path:
    """One with a script, and with a run that has ended."""
    plan = replace(make_plan(), run_dir=f"{tmp_path}/runs/digits-0a1b2c")
    run = RunFolder(Path(plan.run_dir))
    run.create(plan, "#!/bin/sh\n", 1.0)
    write_outcome(run, plan, Ending(cause=Cause.COMPLETED), 2.0)
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("name: tiny\ncommand: [train.py]\nlocal: {}\n")
    return tmp_path


@pytest.mark.parametrize(
    "words", [("--help",), ("run", "--help"), ("ps", "--help"), ("check", "-h")]
)
def test_help_imports_nothing_that_a_command_needs_for_its_work(folder, words):
    found = imported(folder, *words)
    assert not found & (JOBS | ENGINES | HEAVY | OF_WORK)
    assert not {n for n in found if n.startswith(("launcher.plan", "launcher.runs"))}


@pytest.mark.parametrize("words", [("ps", "-a"), ("status",), ("logs",), ("status", "--json")])
def test_what_is_told_of_a_run_is_read_without_the_reader_of_job_files(folder, words):
    found = imported(folder, *words)
    assert not found & (JOBS | ENGINES | HEAVY)
    assert not found & {"launcher.job.spec", "launcher.job.file", "launcher.yamlfile.source"}


@pytest.mark.parametrize("job", ["job.yaml", "train.py"])
def test_rendering_a_good_job_imports_neither_its_errors_nor_what_only_a_run_needs(folder, job):
    found = imported(folder, "render", job, "--on", "local")
    assert not found & (ENGINES | {"asyncio", "numpy", "rich", "argcomplete", "ssl", "tarfile"})
    left_out = {"job.problems", "job.schema", "code.record", "code.archive", "follow.loop"}
    assert not found & {f"launcher.{name}" for name in left_out}
