"""Streams, folders, rights and run folders that are not as they should be: told, never a traceback.

Each command is a process of its own: closed streams and deleted folders cannot be had otherwise.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import run_program, write_python_program

ROOT = Path(__file__).parents[3]
JOB = "name: tiny\ncommand: [train.py]\nnproc_per_node: 1\n"
LINES = [
    *("ps", "ps --all --json", "docs schema", "status", "report", "logs", "stop", "scale 2"),
    *("render job.yaml --on local", "run job.yaml --on local", "doctor job.yaml --on local"),
    *("import job.yaml", "check job.yaml", "hosts --hosts a"),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Outside of pytest's own folders, which are closed to other users."""
    made = Path(tempfile.mkdtemp(prefix="launcher-test-"))
    made.chmod(0o755)
    (made / "job.yaml").write_text(JOB)
    (made / "train.py").write_text("print('trained')\n")
    yield made
    for path in made.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(made)


def shell(
    line: str, cwd: Path, *, prefix: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A line of a shell, in which ``launcher`` is this tree's."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PY": sys.executable}
    variables |= {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "CUDA_VISIBLE_DEVICES": ""}
    variables |= env or {}
    script = f'launcher() {{ "$PY" -m launcher "$@"; }}\n{line}\n'
    return run_program([*prefix, "bash", "-c", script], cwd=cwd, env=variables, errors="replace")


def assert_told(done: subprocess.CompletedProcess[str], code: int = 2, *, words: str = "") -> None:
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert done.returncode == code, said
    assert done.stderr.startswith("error: "), said
    assert "\n  fix: " in done.stderr, said
    assert done.stderr.count("\n") <= 6, said
    assert words in done.stderr, said


# -- streams --------------------------------------------------------------------------------------


# `run` goes on without one: its work is not to print.
@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith("run ")])
def test_a_closed_stdout_is_told_and_nothing_is_begun(folder, line):
    assert_told(shell(f"launcher {line} >&-", folder), words="stdout is closed")
    assert not (folder / "runs").exists()


def test_a_stdin_that_is_not_utf_8_is_told_with_its_line(folder):
    done = shell("printf 'kind: Job\\n\\351\\n' | PYTHONUTF8=1 launcher check -", folder)
    assert_told(done, words="<stdin>:2: byte 0xe9 is not UTF-8")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("line", ["docs schema", "ps", "render job.yaml --on local", "--help"])
def test_output_that_finds_no_room_is_no_success(folder, line):
    assert_told(shell(f"launcher {line} >/dev/full", folder), words="No space left on device")


def test_output_in_another_encoding_is_escaped(folder):
    (folder / "job.yaml").write_text(JOB + "env: {GREETING: 'grüß 😀'}\n")
    for encoding in ("ascii", "latin-1"):
        env = {"PYTHONIOENCODING": encoding}
        done = shell("launcher render job.yaml --on local && launcher ps é", folder, env=env)
        assert "Traceback" not in done.stderr
        assert done.stdout.startswith("#!/bin/sh\n")


def test_names_that_are_no_text_are_told(folder):
    assert_told(shell("launcher run $'\\xff.yaml'", folder), words="not UTF-8")
    assert_told(shell("launcher status $'\\xff'", folder), words="not UTF-8")
    done = shell("launcher run job.yaml --on local --runs $'\\xff'", folder)
    assert_told(done, words="not UTF-8")
    assert_told(
        shell("mkdir $'\\xff'; cd $'\\xff'; launcher run ../job.yaml --on local", folder),
        words="not UTF-8",
    )


# -- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", LINES)
def test_a_deleted_folder_is_told_in_one_line(folder, line):
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; launcher {line}", folder)
    assert_told(done, words="the current folder is gone")
    assert sorted(os.listdir(folder)) == ["job.yaml", "train.py"]


@pytest.mark.parametrize("line", ["status", "run job.yaml", "ps"])
def test_a_deleted_folder_is_told_where_the_launcher_is_called_by_its_path(folder, line):
    write_python_program(folder / "mine", "from launcher.__main__ import main\nmain()\n")
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; {folder}/mine {line}", folder)
    assert_told(done, words="the current folder is gone")


def test_help_and_version_need_no_folder(folder):
    for line in ("--help", "--version", "run --help"):
        assert shell(f"mkdir gone; cd gone; rmdir ../gone; launcher {line}", folder).returncode == 0


# -- rights ---------------------------------------------------------------------------------------


def as_another(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """With no more rights than a file's mode gives: root gives up its own."""
    if os.geteuid() != 0:
        return shell(line, cwd)
    bare = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    return shell(line, cwd, prefix=bare)


def test_a_closed_folder_of_a_script_is_the_one_to_be_opened(folder):
    (folder / "a b/in").mkdir(parents=True)
    (folder / "a b/in/x.py").touch()
    folder.chmod(0o777)
    (folder / "a b").chmod(0o000)
    done = as_another("launcher run 'a b/in/x.py' --on local", folder)
    assert_told(done, words="a b/in/x.py: Permission denied")
    assert "fix: namei -l 'a b/in/x.py' shows" in done.stderr


def test_a_script_that_nobody_writes_is_not_waited_for(folder):
    os.mkfifo(folder / "pipe.py")
    done = shell("launcher run pipe.py --on local", folder)
    assert_told(done, words="pipe.py: no file, but a pipe or a device")


def test_an_argument_that_is_no_text_is_no_file_to_be_renamed(folder):
    done = shell("launcher run train.py --on local -- $'caf\\xe9'", folder)
    assert_told(
        done, words="is not UTF-8, and a plan can only hold UTF-8\n  fix: write it in UTF-8\n"
    )
