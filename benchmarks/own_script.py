"""``own-script``: from the command to the first line of a one-line script's output."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.commands import find_launcher, find_torchrun, read, run
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.trials import Sample, Trial, compare

SCRIPTS = {
    "x.py": "import time; print(time.time(), flush=True)\n",
    "t.py": "import time, torch; print(time.time(), flush=True)\n",
}
IMAGE = "fabric-train:cpu"
ONE = ("--nproc-per-node", "1")


def own_scripts() -> Generator[Trial]:
    """Two rows as local processes; one in Docker, where an engine holds the image."""
    for script, most, *options in (("x.py", 1.2), ("t.py", 0.9, "--set", "start=fork")):
        argv = (*find_launcher(), "run", script, "--on", "local", *ONE, *options)
        theirs: Sample = partial(first_line, (*find_torchrun(), "--standalone", *ONE, script))
        what = f"launcher run {' '.join((script, *options))} --on local against torchrun {script}"
        yield compare(what, partial(first_line, argv), theirs, Goal(of="ratio", most=most))
    docker = shutil.which("docker")
    if docker is None:
        raise BenchmarkError("no program docker; fix: .ci/setup")
    read((docker, "image", "inspect", IMAGE))
    ours: Sample = partial(first_line, (*find_launcher(), "run", "x.py", "--on", "docker", *ONE))
    what = "launcher run x.py --on docker against docker run ... torchrun x.py"
    yield compare(what, ours, partial(by_hand, docker), Goal(of="ratio", most=1.15))


def by_hand(docker: str) -> float:
    """What one types for a script in a container: its folder mounted, torchrun started there."""
    return first_line((docker, "run", *in_container("{folder}"), "x.py"))


def in_container(folder: str) -> tuple[str, ...]:
    """The words after ``docker run`` and before a script of that folder."""
    there = ("--volume", f"{folder}:/code", "--workdir", "/code", "--entrypoint", "torchrun")
    return ("--rm", *there, IMAGE, "--standalone", *ONE)


def first_line(argv: Sequence[str]) -> float:
    """Seconds from the command's start to the line that the script prints first.

    The script prints the time itself: on one machine all processes have one clock. ``{folder}`` in
    a word is the script's folder.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        # The container of the other side may run as any user.
        Path(name).chmod(0o755)
        for script, text in SCRIPTS.items():
            Path(name, script).write_text(text)
        with tempfile.TemporaryFile() as output:
            words = [word.format(folder=name) for word in argv]
            ran = run(words, stdout=output, cwd=Path(name))
            output.seek(0)
            printed = output.read()
        try:
            return float(json.loads(printed)) - ran.started_at
        except ValueError as error:
            raise BenchmarkError(f"{argv[0]} printed {printed[:80]!r}, not a time") from error
