"""Commands that are measured: their environment, their failures, and how the tools are found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import commands
from benchmarks.commands import find_torchx, measured_environment, run
from benchmarks.measure import BenchmarkError


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_both_sides_get_one_thread_and_nothing_of_an_outer_run() -> None:
    given = {
        "HOME": "/home/me",
        "OMP_NUM_THREADS": "8",
        "RANK": "3",
        "RUN_DIR": "/runs/a",
        "PET_NNODES": "2",
        "LAUNCHER_RUNS": "/runs",
        "LT_DEVICES": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    assert measured_environment(given) == {
        "HOME": "/home/me",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def test_a_command_is_timed_from_its_start_to_its_end() -> None:
    ran = run(python("import os; assert os.environ['EXTRA'] == '1'"), {"EXTRA": "1"})
    assert ran.started_at > 0
    assert ran.duration_s > 0


def test_a_command_that_is_measured_may_keep_its_bytecode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    run(python("import sys; assert not sys.dont_write_bytecode"))


def test_a_command_that_fails_is_shown_with_its_last_lines() -> None:
    with pytest.raises(BenchmarkError, match=r"exit code 3 of: .*(?s:.*)last words"):
        run(python("import sys; print('last words'); sys.exit(3)"))


def test_a_command_that_is_missing_is_named() -> None:
    with pytest.raises(BenchmarkError, match="cannot start /no/such/program: No such file"):
        run(("/no/such/program",))


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "TIMEOUT_S", 0.5)
    with pytest.raises(BenchmarkError, match="did not end within"):
        run(python("import signal; signal.pause()"))


def test_torchx_is_taken_from_its_variable_else_from_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_torchx({"TORCHX": "/opt/torchx"}) == "/opt/torchx"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_torchx({}) is None
    (tmp_path / "torchx").touch(mode=0o755)
    assert find_torchx({}) == str(tmp_path / "torchx")
