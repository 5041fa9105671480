"""A target that nothing else knows: its line in the contract's table shows what it does."""

import subprocess

from tests.launcher.runner import ROOT


def test_no_other_file_knows_the_toy():
    argv = ["git", "grep", "-liE", "toy_?target|ToyRoom", "--", "*.py", "*.toml", "Makefile"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    known = ("tests/launcher/toy_target/", "tests/launcher/targets/contract/")
    assert all(name.startswith(known) for name in done.stdout.split())
