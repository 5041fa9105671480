"""The benchmarks by name; each takes the number of repetitions and gives its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.checking import measure_check
from benchmarks.command_line import measure_help, measure_render
from benchmarks.hosts import measure_hosts
from benchmarks.manifests import measure_manifests
from benchmarks.measure import Row
from benchmarks.output import measure_output
from benchmarks.own_script import measure_own_script
from benchmarks.plan import measure_plan
from benchmarks.pods import measure_pods
from benchmarks.recovery import measure_losses, measure_recovery
from benchmarks.save import measure_resume, measure_save
from benchmarks.start import measure_start
from benchmarks.step import measure_step
from benchmarks.strategies import measure_strategies

BENCHMARKS: dict[str, Callable[[int], Iterator[Row]]] = {
    "start": measure_start,
    "own-script": measure_own_script,
    "render": measure_render,
    "help": measure_help,
    "plan": measure_plan,
    "manifests": measure_manifests,
    "check": measure_check,
    "pods": measure_pods,
    "output": measure_output,
    "step": measure_step,
    "strategies": measure_strategies,
    "save": measure_save,
    "resume": measure_resume,
    "recovery": measure_recovery,
    "losses": measure_losses,
    "hosts": measure_hosts,
}
"""Names are what the command line takes and what docs/benchmarks.md explains."""

UNTIL_SURE: dict[str, Callable[[int, int], Iterator[Row]]] = {"strategies": measure_strategies}
"""Those that go on until a ratio is known well, up to a limit of samples."""
