"""Writes into what is built the commit, which ``launcher --version`` tells, and the pages of docs/.

All else of the build is in pyproject.toml.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
COMMIT = "launcher/COMMIT"
ASK = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def write_commit(folder: Path) -> None:
    """Into the sources of a wheel or sdist; nothing where no commit is known."""
    kept = HERE / COMMIT  # in a source distribution
    commit = kept.read_text() if kept.exists() else ""
    if not commit and (HERE / ".git").exists():
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            commit = subprocess.run(
                ASK, cwd=HERE, capture_output=True, text=True, check=True
            ).stdout.strip()
    if commit:
        (folder / COMMIT).parent.mkdir(parents=True, exist_ok=True)
        (folder / COMMIT).write_text(commit)


def copy_pages(folder: Path) -> None:
    """What ``launcher docs`` prints."""
    for page in (*(HERE / "docs").glob("*.md"), *(HERE / "docs/tutorials").glob("*.md")):
        copy = folder / "launcher/commands/pages" / page.relative_to(HERE / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)


class BuildWithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout has git and docs/
            write_commit(Path(self.build_lib))
            copy_pages(Path(self.build_lib))


class SourceWithCommit(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


setup(cmdclass={"build_py": BuildWithCommit, "sdist": SourceWithCommit})
