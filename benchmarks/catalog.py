"""The benchmarks by name; each takes the number of repetitions and gives its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.checking import measure_check
from benchmarks.command_line import measure_help, measure_render
from benchmarks.manifests import measure_manifests
from benchmarks.measure import Row
from benchmarks.plan import measure_plan
from benchmarks.recovery import measure_recovery
from benchmarks.save import measure_resume, measure_save
from benchmarks.start import measure_start
from benchmarks.step import measure_step

BENCHMARKS: dict[str, Callable[[int], Iterator[Row]]] = {
    "start": measure_start,
    "render": measure_render,
    "help": measure_help,
    "plan": measure_plan,
    "check": measure_check,
    "manifests": measure_manifests,
    "step": measure_step,
    "save": measure_save,
    "resume": measure_resume,
    "recovery": measure_recovery,
}
"""Names are what the command line takes and what docs/benchmarks.md explains."""
