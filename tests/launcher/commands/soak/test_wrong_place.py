"""Streams, folders, rights and run folders that are not as they should be: told, never a traceback.

Each command is a process of its own: closed streams and deleted folders cannot be had otherwise.
"""

import shutil
from pathlib import Path

import pytest

from launcher.commands import cli
from tests.launcher.commands.test_wrong_place import JOB, as_another, assert_told, folder, shell


def test_a_closed_stderr_and_stdin_harm_nothing(folder):
    done = shell("launcher render job.yaml --on local <&- 2>&-", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("#!/bin/sh\n")
    assert shell("launcher status nothing 2>&-", folder).stdout == ""
    done = shell("launcher check - <&-", folder)
    assert (done.returncode, "the file is empty" in done.stdout) == (2, True)


@pytest.mark.parametrize(
    "line",
    ["ps", "docs schema", "--help", "run --help", "render job.yaml --on local", "status x 2>&1"],
)
def test_a_reader_that_goes_early_is_no_error(folder, line):
    done = shell(f"launcher {line} | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}", folder)
    assert done.stderr == ""
    assert done.stdout in ("0\n", "2\n")
    done = shell(f"launcher {line} | true", folder)
    assert done.stderr == ""


RIGHTS = [
    ("run job.yaml --on local", ".", 0o555, "runs"),
    ("run job.yaml --on local", "job.yaml", 0o000, "job.yaml: cannot be read: Permission denied"),
    ("run job.yaml --on local --set workdir=w", "w", 0o000, "Permission denied"),
    ("run job.yaml --on local --set checkpoint_dir=w/x", "w", 0o555, "cannot be made"),
    ("run job.yaml --on local --set local.python=w/python", "w", 0o000, "local.python"),
    ("ps --runs w", "w", 0o000, "Permission denied"),
    ("run job.yaml --hosts w/hosts.yaml", "w", 0o000, "w/hosts.yaml"),
]


@pytest.mark.parametrize(("line", "what", "mode", "words"), RIGHTS)
def test_what_may_not_be_read_or_written_is_told(folder, line, what, mode, words):
    folder.chmod(0o777)
    (folder / "w").mkdir()
    (folder / what).chmod(mode)
    try:
        assert_told(as_another(f"launcher {line}", folder), words=words)
    finally:
        (folder / what).chmod(0o755)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("option", ["--set checkpoint_dir", "--runs"])
def test_a_folder_where_nothing_can_be_made_is_told_before_a_run_is_begun(folder, option):
    done = shell(f"launcher run job.yaml --on local {option}=/proc/x", folder)
    assert_told(done, words="/proc/x")
    assert "change its owner" not in done.stderr, "nobody's rights are the cause"
    assert not (folder / "runs").exists()


# -- run folders that were damaged ----------------------------------------------------------------

GARBAGE = [b"", b"{}", b'{"at": null, "pid": []}']
MORE_GARBAGE = [b"\xff\0\xfe", b"null", b"[]", b'"x"', b"1", b"[" * 100_000]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run that failed."""
    made = tmp_path_factory.mktemp("ended")
    (made / "job.yaml").write_text(JOB)
    (made / "train.py").write_text("raise SystemExit(1)\n")
    assert shell("launcher run job.yaml --on local", made).returncode == 1
    return made


@pytest.mark.parametrize("content", [*GARBAGE, *(each for each in MORE_GARBAGE)])
@pytest.mark.parametrize(
    "name", ["plan.json", "outcome.json", "launcher.json", "submitted.json", "metrics.json"]
)
def test_a_damaged_run_folder_is_told_by_every_command(ended, folder, name, content, monkeypatch):
    shutil.copytree(ended / "runs", folder / "runs", symlinks=True)
    run = next(path for path in (folder / "runs").iterdir() if not path.is_symlink())
    monkeypatch.chdir(folder)
    for line in ("ps -a", "ps", "status", "report", "logs", "stop", "scale 2"):
        (run / name).write_bytes(content)
        # In this process: anything but an exit code is raised, and fails the test.
        assert cli.run_command(line.split()) in (0, 2), line
