"""``again``: from the command to work, on nodes that are held with torch imported."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.again_places import NAME, SCRIPT, Place, docker, hosts, kubernetes, local, slurm
from benchmarks.commands import find_launcher, run
from benchmarks.measure import BenchmarkError, Goal
from benchmarks.own_script import ONE
from benchmarks.start import TRAINING, read_first_step, start_torchrun
from benchmarks.trials import Trial, compare

TEXT = 'import time, torch; print(f"{number} {{time.time()}}", flush=True)\n'
NUMBERS = itertools.count(1)
PLACES: tuple[tuple[Callable[[Path], AbstractContextManager[Place]], Goal], ...] = (
    (local, Goal(of="ratio", most=0.35)),
    (docker, Goal(of="seconds", most=2.0)),
    (hosts, Goal(of="seconds", most=2.0)),
    (slurm, Goal(of="seconds", most=2.0)),
    (kubernetes, Goal(of="seconds", most=3.0)),
)


def agains() -> Generator[Trial]:
    """A script that imports torch, in each place that there is; the first step of the digits."""
    for open_place, goal in PLACES:
        with ExitStack() as stack:
            name = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            folder = Path(name)
            # A container may run as any user.
            folder.chmod(0o755)
            try:
                place = stack.enter_context(open_place(folder))
            except BenchmarkError as error:
                print(f"left out: {open_place.__name__}: {error}", file=sys.stderr, flush=True)
                continue
            inside = stack.enter_context(held(place, folder))
            ours = partial(edited, (*find_launcher(), "run", SCRIPT, *inside), place, folder)
            what = f"launcher run {SCRIPT} --in HOLD, {place.what}"
            if place.by_hand:
                theirs = partial(edited, place.by_hand, place, folder)
                yield compare(f"{what}, against {place.peer}", ours, theirs, goal)
            else:
                yield compare(what, ours, goal=goal)
            if open_place is local:
                yield compare(
                    "launcher run jobs/digits.yaml --in HOLD against torchrun, nproc 1",
                    partial(first_step, inside, folder / "runs"),
                    partial(start_torchrun, 1),
                    Goal(of="ratio", most=0.5),
                )


@contextmanager
def held(place: Place, folder: Path) -> Iterator[tuple[str, ...]]:
    """The options of a run in a hold there, whose run folders lie in ``folder``."""
    runs = ("--runs", str(folder / "runs"))
    words = ("--name", NAME, *runs, *ONE, *place.options)
    run((*find_launcher(), "hold", *words), place.environment, cwd=folder)
    try:
        yield ("--in", NAME, *runs)
    finally:
        run((*find_launcher(), "stop", NAME, *runs), place.environment, cwd=folder)


def edited(argv: Sequence[str], place: Place, folder: Path) -> float:
    """Seconds from an edit of the script to the first line that it prints on any node.

    The line has the edited number, and the time: on one machine all processes have one clock.
    """
    number = next(NUMBERS)
    (folder / SCRIPT).write_text(TEXT.format(number=number))
    with tempfile.TemporaryFile() as output:
        ran = run(argv, place.environment, stdout=output, cwd=folder)
        output.seek(0)
        printed = output.read().decode(errors="replace")
    # Some put a prefix before a line.
    lines = (line.split()[-2:] for line in printed.splitlines())
    times = [float(words[1]) for words in lines if words[:1] == [str(number)]]
    if not times:
        raise BenchmarkError(f"{argv[0]} printed {printed[-80:]!r}, and not {number} with a time")
    return min(times) - ran.started_at


def first_step(inside: tuple[str, ...], runs: Path) -> float:
    """Seconds from the launcher's start to the end of the first optimizer step."""
    ran = run((*find_launcher(), "run", "jobs/digits.yaml", *inside, *ONE, "--", *TRAINING))
    return read_first_step(runs / "latest") - ran.started_at
