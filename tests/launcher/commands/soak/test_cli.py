"""The command line as a person types it: one process a test, its exit code and its words."""

from __future__ import annotations

import subprocess

import pytest

from tests.launcher.commands.test_cli import folder, launcher


@pytest.mark.parametrize(
    ("options", "length"),
    [
        pytest.param(("--set", "engine=torchrun"), 4_000, id="torchrun"),
        pytest.param(("--embed",), 2**20, id="agent-embedded"),
    ],
)
def test_the_rendered_script_runs_by_hand(folder, options, length):
    (folder / "train.py").write_text("import os; open('seen', 'w').write(os.environ['RANK'])\n")
    script = launcher("render", "job.yaml", "--on", "local", *options, cwd=folder).stdout
    assert len(script) < length
    assert ("base64" in script) == ("--embed" in options)
    (folder / "artifact.sh").write_text(script)
    subprocess.run(["sh", "artifact.sh"], cwd=folder, check=True, timeout=120)
    assert (folder / "seen").read_text() == "0"
