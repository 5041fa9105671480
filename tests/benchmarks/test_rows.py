"""The rows of the benchmarks, with samples that are made up: which figures each row compares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import (
    checking,
    command_line,
    containers,
    hosts,
    hosts_runs,
    hosts_sessions,
    manifests,
    output,
    own_script,
    plan,
    save,
    start,
    step,
)
from benchmarks.catalog import BENCHMARKS
from benchmarks.hosts_sessions import Fanout
from benchmarks.machines import Machines
from benchmarks.measure import Row
from benchmarks.trials import run_benchmark

Patch = Callable[[Any, str, Any], None]


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Patch:
    return monkeypatch.setattr


def rows_of(name: str) -> list[Row]:
    """After two pairs; what is made up has no noise."""
    rows = list(run_benchmark(name, BENCHMARKS[name], 2, 0))
    assert {row.benchmark for row in rows} == {name}
    assert len({row.what for row in rows}) == len(rows)
    assert all(row.interval for row in rows if row.theirs)
    return rows


def ratios(rows: list[Row]) -> list[float | None]:
    return [row.ratio and round(row.ratio, 3) for row in rows]


def test_starts_are_compared_for_each_number_of_processes(patch: Patch) -> None:
    patch(start, "start_launcher", lambda nproc: 1.0 * nproc)
    patch(start, "start_torchrun", lambda nproc: 2.0 * nproc)
    assert ratios(rows_of("start")) == [0.5, 0.5]


def test_steps_are_compared_for_each_reduction(patch: Patch) -> None:
    asked: list[list[str]] = []

    @contextmanager
    def answering(argv: Any) -> Iterator[Callable[[], str]]:
        asked.append(list(argv[-4:]))
        yield lambda: json.dumps({"ours": {"median_step_s": 1}, "theirs": {"median_step_s": 4}})

    patch(step, "answering", answering)
    assert ratios(rows_of("step")) == [0.25] * 9
    assert asked[-2:] == [["fast", "4", "16", "4"], ["exact", "4", "16", "4"]]


def test_own_scripts_are_compared_here_and_in_docker(patch: Patch) -> None:
    patch(own_script, "first_line", lambda argv: 1.0 if "--on" in argv else 2.0)
    patch(own_script, "by_hand", lambda docker: 4.0)
    patch(own_script, "read", lambda argv: "")
    patch(own_script.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert ratios(rows_of("own-script")) == [0.5, 0.5, 0.25]


def test_a_killed_container_has_a_goal(patch: Patch) -> None:
    patch(containers, "time_kill", lambda docker: 1.0)
    patch(containers, "read", lambda argv: "")
    patch(containers.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert [row.ok for row in rows_of("containers")] == [True]


def test_the_command_line_is_compared_by_whole_processes(patch: Patch) -> None:
    durations = {"launcher": 1.0, "torchx": 4.0, "torchrun": 8.0}
    for name in durations:
        found = (name,) if name != "torchx" else name
        patch(command_line, f"find_{name}", lambda *_, found=found: found)

    def run(argv: Sequence[str], cwd: object = None) -> object:
        seconds = durations[argv[0]]
        return SimpleNamespace(duration_s=seconds, processor_s=seconds / 100, started_at=9.5)

    patch(command_line, "run", run)
    patch(command_line, "_until_first_line", lambda argv, folder: 0.2)
    assert ratios(rows_of("render")) == [0.25]
    assert ratios(rows_of("help")) == [0.125, 0.125]
    assert [row.ok for row in rows_of("answers")] == [True] * 4


def test_one_of_many_is_compared_with_one_of_few(patch: Patch) -> None:
    # A quarter more for each of many.
    patch(plan, "plan_and_render", lambda n: n * (1.25e-6 if n == plan.MANY else 1e-6))
    patch(checking, "check_manifests", lambda n: n * (1.25e-6 if n == checking.MANY else 1e-6))
    patch(checking, "run_check", lambda n: 4.0)
    assert ratios(rows_of("plan")) == [None, None, 1.25]
    assert ratios(rows_of("check")) == [None, 1.25]
    assert [row.ok for row in rows_of("check")] == [True, True]


def test_each_kind_of_manifest_has_a_goal(patch: Patch) -> None:
    patch(manifests, "plan_and_render_kind", lambda kind, nodes: 0.5)
    assert [row.ok for row in rows_of("manifests")] == [True] * len(manifests.KINDS)


def test_output_is_compared_for_each_engine(patch: Patch) -> None:
    patch(output, "by_launcher", lambda engine: 1.0 + (engine == "agent"))
    patch(output, "by_torchrun", lambda: 2.0)
    assert ratios(rows_of("output")) == [0.5, 1.0]


def test_saves_are_compared_with_synchronous_ones_and_resumes_with_early_ones(
    patch: Patch,
) -> None:
    seconds = {"asynchronous": 1.0, "synchronous": 8.0}
    patch(save, "_time", lambda kind, size: seconds.get(kind, float(size)))
    rows = rows_of("save")
    assert ratios(rows) == [0.125] * 3
    assert [row.goal is not None for row in rows] == [False, False, True]
    assert ratios(rows_of("resume")) == [100_000.0]


def test_hosts_have_rows_for_runs_and_for_each_number_of_sessions(patch: Patch) -> None:
    @contextmanager
    def four() -> Iterator[Machines]:
        yield Machines(given="hosts.yaml", many="hosts.yaml")

    inventory = SimpleNamespace(hosts=[SimpleNamespace(name=f"h{i}") for i in range(4)])
    patch(hosts, "find_machines", four)
    for module in (hosts_runs, hosts_sessions):
        patch(module, "read_inventory", lambda given: inventory)
    patch(hosts_runs, "start_launcher", lambda given: 1.0)
    patch(hosts_runs, "start_torchrun", lambda inventory: 2.0)
    patch(hosts_runs, "stop_launcher", lambda given, nodes: 0.5)
    patch(hosts_sessions, "open_all", lambda _, of: Fanout(seconds=len(of), memory_mb=8.0))
    patch(hosts_sessions, "loop_over", lambda _, of: Fanout(seconds=2 * len(of), memory_mb=4.0))
    rows = rows_of("hosts")
    few_of_many = hosts_sessions.FEW / hosts_sessions.MANY
    assert ratios(rows) == [0.5, None, *[0.5, 2.0] * 4, 1.0, few_of_many]
    assert rows[1].ok
