"""A repository as people have it: a submodule, links, and large files that git ignores."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
sys.path.insert(0, "sub module")
import inside, linked
print(inside.NAME, linked.NAME, os.path.getsize("data.bin") >> 30, flush=True)
"""
GIB = 1 << 30


def git(folder: Path, *words: str) -> None:
    person = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *person, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("target", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_repository_with_a_submodule_a_link_and_a_large_ignored_file(launcher, tmp_path, target):
    other, top = tmp_path / "other", tmp_path / "my repo"
    for folder in (other, top):
        folder.mkdir()
        git(folder, "init", "-q")
    (other / "inside.py").write_text('NAME = "submodule"\n')
    git(other, "add", ".")
    git(other, "commit", "-qm", "one")
    git(top, "submodule", "--quiet", "add", str(other), "sub module")
    (top / "train.py").write_text(SCRIPT)
    (top / "real.py").write_text('NAME = "link"\n')
    (top / "linked.py").symlink_to("real.py")
    (top / ".gitignore").write_text("*.bin\nruns/\n")
    with (top / "data.bin").open("wb") as file:
        file.truncate(2 * GIB)
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    launcher.folder = top
    done = launcher.well("run", "train.py", "--on", target, "--nproc-per-node", "1")
    assert done.stdout == "submodule link 2\n"
    told = json.loads((top / "runs/latest/code.json").read_text())
    assert not told["is_dirty"]
    assert told["bytes"] < 10_000
    assert (top / "runs/latest/code.tar.gz").stat().st_size < 10_000
