"""Commands that are measured: their environment, their failures, and how the tools are found."""

import sys

import psutil
import pytest

from benchmarks import commands
from benchmarks.commands import answering, measured_environment, run
from benchmarks.measure import BenchmarkError


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_both_sides_get_one_thread_and_nothing_of_an_outer_run():
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


ECHO = "import sys\nfor number, _ in enumerate(sys.stdin): print(number, flush=True)"


def test_a_program_that_answers_stays_between_samples_and_ends_afterwards():
    with answering(python(f"import os; print(os.getpid(), flush=True)\n{ECHO}")) as ask:
        pid = int(ask())
        assert [ask(), ask()] == ["0\n", "1\n"]
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_a_command_that_fails_is_shown_with_its_last_lines():
    with pytest.raises(BenchmarkError, match=r"exit code 3 of: .*(?s:.*)last words"):
        run(python("import sys; print('last words'); sys.exit(3)"))


def test_a_command_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(commands, "TIMEOUT_S", 0.5)
    with pytest.raises(BenchmarkError, match="did not end within"):
        run(python("import signal; signal.pause()"))


def test_the_processor_time_of_a_command_is_its_own_and_not_the_time_that_it_sleeps():
    busy = run((sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"))
    idle = run((sys.executable, "-S", "-c", "import time; time.sleep(0.3)"))
    assert busy.processor_s > 0.29
    assert idle.processor_s < idle.duration_s
