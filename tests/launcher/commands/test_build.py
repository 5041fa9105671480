"""``launcher build``: what is refused before an engine is asked."""

import pytest


@pytest.mark.parametrize(
    ("given", "missing"), [(("--base", "b:1"), "--tag"), ((), "--base, --tag")]
)
def test_a_missing_option_is_told_with_all_that_build_needs(launcher, given, missing):
    told = launcher.fails(2, "build", "train.py", *given)
    assert told.startswith(f"error: {missing} is missing\n")
    assert "fix: python -m launcher build --help\n" in told


def test_without_a_script_the_code_is_what_is_here_and_then_an_engine_is_needed(launcher):
    (launcher.folder / "train.py").touch()
    launcher.env["PATH"] = str(launcher.folder)
    told = launcher.fails(3, "build", "--base", "base:1", "--tag", "train:1")
    assert told.startswith("error: no docker client is on PATH\n  fix: install Docker")
