"""Commands that are typed where no run is."""

import os
import sys

import pytest

from tests.launcher.runner import ROOT
from tests.programs import run_program


@pytest.mark.parametrize("module", ["launcher.commands.cli", "launcher.api.choose_target"])
def test_ctrl_c_while_modules_are_imported_is_no_stack_trace(module, tmp_path):
    """A signal that this process sends itself, in the middle of the imports."""
    program = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["launcher", "ps"]
from launcher.__main__ import main
main()
"""
    done = run_program(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
