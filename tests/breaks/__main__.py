"""Applies breaks in a copy of the project and prints which ones the tests did not catch.

    python tests/breaks [PART OF A NAME OR FILE ...]

Exit codes: 0 all were caught; 1 some were not.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.breaks.apply import ROOT, Break, copy_project, read_breaks

LIMIT_S = 900
"""For the tests of one room."""


def find_catcher(one: Break, copy: Path) -> str:
    """The tests that fail with the break, empty where none does. Leaves the copy as it was.

    Raises ``RuntimeError`` where the tests tell nothing: they do not start, or the test that failed
    does so without the break too.
    """
    for tests in one.tests:
        one.apply(copy)
        try:
            done = run_tests(copy, *tests.split())
        finally:
            (copy / one.file).write_bytes((ROOT / one.file).read_bytes())
        if done.returncode == 1 and run_tests(copy, *tests.split(), "--last-failed").returncode:
            raise RuntimeError(f"{tests} fails without the break too\n{done.stdout[-2000:]}")
        if done.returncode == 1:
            return tests
        if done.returncode != 0:  # such as a folder of tests that is gone
            raise RuntimeError(f"pytest {tests}: {done.returncode}\n{done.stdout[-2000:]}")
    return ""


def run_tests(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs tests of the copy up to the first that fails."""
    # The copy's modules come before those that the environment leads to, also in child processes.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, "-m", "pytest", "-x", "-q", *words)
    # One process: which test fails first stays the same from run to run.
    return subprocess.run(
        (*command, "-p", "no:xdist"),
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def main(words: list[str]) -> int:
    """Tries the breaks whose name or file holds one of the words; all without words."""
    chosen = [
        one
        for one in read_breaks()
        if not words or any(word in one.name or word in one.file for word in words)
    ]
    missed = []
    with tempfile.TemporaryDirectory(prefix="breaks-") as folder:
        copy_project(Path(folder))
        for one in chosen:
            started = time.monotonic()
            try:
                catcher = find_catcher(one, Path(folder))
                how = f"by {catcher}" if catcher else f"NOT CAUGHT. A user sees: {one.sees}"
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                catcher, how = "", f"NOT KNOWN: {error}"
            if not catcher:
                missed.append(one)
            print(f"{one.name}  {time.monotonic() - started:.0f} s  {how}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} breaks were caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
