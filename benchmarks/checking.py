"""``check``: the rules for manifests over many files, and whether the time grows with them."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from benchmarks.commands import ROOT, find_launcher, run
from benchmarks.measure import Goal
from benchmarks.trials import Comparison, Round, Trial, compare

FEW, MANY = 100, 1_000
KINDS = ("job-no-operator", "job-static", "base/job", "jobset", "trainjob")
"""This project's own manifests, of all kinds that have rules."""
MANIFEST = "job-no-operator"
"""Of all kinds the one whose objects are looked up in each other."""


def checks() -> Generator[Trial]:
    """A row for the whole command, and one that compares a manifest among few and among many."""
    yield compare(
        f"launcher check of {MANY:,} files, processor time",
        lambda: run_check(MANY),
        goal=Goal(of="seconds", most=5.0),
    )
    yield Trial(
        take=take_round,
        rows=(
            Comparison(
                what=f"time per manifest, of {MANY:,} against of {FEW:,}",
                ours="one of many",
                theirs="one of few",
                goal=Goal(of="ratio", most=1.3),
            ),
        ),
    )


def take_round() -> Round:
    """Both numbers of manifests in turn."""
    few, many = check_manifests(FEW), check_manifests(MANY)
    return {"one of few": few / FEW, "one of many": many / MANY}


def read_named(kind: str, number: int) -> str:
    """A manifest of this project whose objects have names of their own."""
    text = (ROOT / "k8s" / f"{kind}.yaml").read_text()
    return text.replace("name: digits", f"name: digits-{number}")


def run_check(number: int) -> float:
    """Seconds of processor time of one command that checks so many files of all kinds."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{i}.yaml") for i in range(number)]
        for i, file in enumerate(files):
            file.write_text(read_named(KINDS[i % len(KINDS)], i))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run((*find_launcher(), "check", *map(str, files)))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def check_manifests(number: int) -> float:
    """Seconds to read and check so many files with an Indexed Job and its Service each."""
    from launcher.manifests.check import check_manifests

    # Without the agent's archive in front, which nobody else's manifests hold.
    texts = [
        (f"digits-{i}.yaml", read_named(MANIFEST, i).partition("\n---\n")[2]) for i in range(number)
    ]
    began = time.perf_counter()
    checked = check_manifests(texts)
    duration_s = time.perf_counter() - began
    assert checked.known == number, "every file holds one job"
    return duration_s
