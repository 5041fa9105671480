"""TAB, pressed in real shells on a terminal."""

import fcntl
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}
SET_UP = {
    "bash": 'eval "$(launcher completion bash)"',
    "zsh": 'bindkey -e; autoload -Uz compinit; compinit -D; eval "$(launcher completion zsh)"',
    "fish": "launcher completion fish | source",
}
LIMIT_S = 60.0
TAB, TO_START, TO_END, ENTER = "\t", "\x01", "\x05", "\r"


class Terminal:
    """A shell that a person types into."""

    def __init__(self, shell: str, folder: Path) -> None:
        self._answer = folder.parent / "answer"
        scripts = Path(sys.executable).parent
        path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
        env = {"PATH": path, "HOME": str(folder.parent), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        self._terminal, end = pty.openpty()
        self._shell = subprocess.Popen(
            SHELLS[shell],
            cwd=folder,
            env=env,
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(end)
        self._type(f"{SET_UP[shell]}; touch {self._answer}{ENTER}")
        self._read_answer()

    def press_tab(self, line: str) -> list[str]:
        """The words of the line after a TAB at its end."""
        asks = f"{TO_START}printf '%s\\n' {TO_END} >{self._answer}.new"
        self._type(f"{line}{TAB}{asks}; mv {self._answer}.new {self._answer}{ENTER}")
        return self._read_answer().splitlines()

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._terminal)

    def _type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def _read_answer(self) -> str:
        shown, deadline = b"", time.monotonic() + LIMIT_S
        while not self._answer.exists():
            assert time.monotonic() < deadline, shown.decode(errors="replace")
            if select.select([self._terminal], [], [], 0.05)[0]:
                shown += os.read(self._terminal, 65536)
        text = self._answer.read_text()
        self._answer.unlink()
        return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a script, a job file, and what is neither."""
    made = tmp_path_factory.mktemp("completion") / "my project"
    for name in ("train.py", "training.log", "runs/of.log", "data set/small.yaml"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).touch()
    return made


@pytest.fixture(scope="module", params=SHELLS)
def terminal(request: pytest.FixtureRequest, folder: Path) -> Iterator[Terminal]:
    if shutil.which(request.param) is None:
        pytest.skip(f"no {request.param}: apt-get install {request.param}")
    opened = Terminal(request.param, folder)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        pytest.param("launcher stat", "launcher status", id="a command"),
        pytest.param("launcher run --max-r", "launcher run --max-restarts", id="an option"),
        pytest.param("launcher run t", "launcher run train.py", id="a script, and not its log"),
        pytest.param("launcher run --on kub", "launcher run --on kubernetes", id="a target"),
        pytest.param("launcher run --image tr", "launcher run --image tr", id="no file as image"),
        pytest.param("launcher ps --runs r", "launcher ps --runs runs/", id="a folder"),
        pytest.param("launcher run x -- tr", "launcher run x -- train", id="a file behind"),
        pytest.param("launcher completion z", "launcher completion zsh", id="a choice"),
    ],
)
def test_tab_completes(terminal, line, completed):
    assert terminal.press_tab(line) == completed.split()


def test_tab_completes_what_has_a_blank_in_its_name(terminal):
    assert terminal.press_tab("launcher run d") == ["launcher", "run", "data set/"]
    words = ["launcher", "run", "data set/small.yaml"]
    assert terminal.press_tab(r"launcher run data\ set/s") == words


def test_without_a_tab_argcomplete_is_not_imported():
    program = "import sys, launcher.commands.cli as c; c._parser('x'); print(*sys.modules)"
    argv = (sys.executable, "-c", program)
    assert "argcomplete" not in subprocess.check_output(argv, text=True).split()
