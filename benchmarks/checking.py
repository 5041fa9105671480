"""``check``: the rules for manifests over many files, and whether the time grows with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Goal, Row, interleave

FEW, MANY = 100, 1_000
MANIFEST = Path("k8s/job-no-operator.yaml")
"""Of all kinds the one whose objects are looked up in each other."""


def measure_check(repetitions: int) -> Iterator[Row]:
    """A row for many manifests that are checked together, and one that compares one in both."""
    few, many = interleave(repetitions, lambda: check_manifests(FEW), lambda: check_manifests(MANY))
    yield Row(benchmark="check", what=f"{MANY:,} manifests in one call", ours=many)
    yield Row(
        benchmark="check",
        what=f"time per manifest, of {MANY:,} against of {FEW:,}",
        ours=many.per(MANY),
        theirs=few.per(FEW),
        goal=Goal(of="ratio", most=1.3),
    )


def check_manifests(number: int) -> float:
    """Seconds to read and check so many files with an Indexed Job and its Service each."""
    from launcher.manifests.check import check_manifests

    # Without the agent's archive in front, which nobody else's manifests hold.
    text = MANIFEST.read_text().partition("\n---\n")[2]
    names = [f"digits-{i}" for i in range(number)]
    texts = [(f"{name}.yaml", text.replace("name: digits", f"name: {name}")) for name in names]
    began = time.perf_counter()
    checked = check_manifests(texts)
    duration_s = time.perf_counter() - began
    assert checked.known == number, "every file holds one job"
    return duration_s
