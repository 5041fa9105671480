"""``launcher build``: what is refused before an engine is asked."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("given", "missing"), [(("--base", "b:1"), "--tag"), ((), "--base, --tag")]
)
def test_a_missing_option_is_told_with_all_that_build_needs(launcher, given, missing):
    done = launcher("build", "train.py", *given)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {missing} is missing\n")
    assert "fix: python -m launcher build --help\n" in done.stderr


def test_without_a_script_the_code_is_what_is_here_and_then_an_engine_is_needed(launcher):
    (launcher.folder / "train.py").touch()
    launcher.env["PATH"] = str(launcher.folder)
    done = launcher("build", "--base", "base:1", "--tag", "train:1")
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("error: no docker client is on PATH\n  fix: install Docker")
