"""Work that goes on without the command that began it."""

import os
import subprocess
import sys

import pytest

from tests.launcher.runner import ROOT
from tests.waiting import wait_until

CODE = """
import os, signal, sys
from pathlib import Path
from launcher.targets.subprocesses import background
def work(tell):
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "tells":
        tell("up")
        print("works on in session", os.getsid(0), flush=True)
print(repr(background.in_background(work, Path(sys.argv[2]))))
"""


@pytest.mark.parametrize(("how", "said"), [("killed", "''"), ("ends", "''"), ("tells", "'up'")])
def test_it_holds_up_no_parent_and_leaves_the_parents_terminal(tmp_path, how, said):
    log = tmp_path / "log"
    argv = [sys.executable, "-c", CODE, how, str(log)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.strip() == said, done.stderr
    if how == "tells":
        wait_until(lambda: "session" in log.read_text())
        assert f"session {os.getsid(0)}\n" not in log.read_text()
