"""Every command that README shows is executed, in this checkout, as it is written."""

import os
import re
from pathlib import Path

import pytest

from tests.programs import run_program

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.strip()
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]
ITSELF = "make test"
"""Not executed by a test that it runs; `.ci/run` is what executes it."""


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != ITSELF])
def test_a_command_of_the_readme_works(command):
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "ARGS")}
    done = run_program(["bash", "-c", command], cwd=ROOT, env=env, timeout=280)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_the_readme_names_its_own_test_command():
    assert ITSELF in COMMANDS


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"tests/[\w/]+\.py|docs/[\w/-]+\.md", README)))
)
def test_what_the_readme_points_to_exists(path):
    assert (ROOT / path).exists()
