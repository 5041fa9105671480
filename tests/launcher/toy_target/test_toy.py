"""A target that nothing else knows does all that every target does."""

from __future__ import annotations

import subprocess

from tests.launcher.runner import ROOT


def test_no_other_file_knows_the_toy():
    argv = ["git", "grep", "-liE", "toy_?target|ToyRoom", "--", "*.py", "*.toml", "Makefile"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert all(name.startswith("tests/launcher/toy_target/") for name in done.stdout.split())
