"""A worker that crashes in C code: its Python stack is seen, and its signal is named everywhere."""

import re
import sys

import pytest

from launcher.agent.engine.monitoring.stacks import parse_faulthandler
from launcher.agent.worker_exit import read_ends
from launcher.contract.protocol import ERROR_FILE
from launcher.contract.reports.look import CRASHED_STACKS
from tests.launcher.agent.place import Place
from tests.programs import run_program

CRASH = """
import ctypes
def read_the_data():
    ctypes.string_at(0)
read_the_data()
"""
ABORT = """
import os, sys
print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr)
os.abort()
"""
STACK = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
STACKS = (("PYTHONFAULTHANDLER", "1"),)


def stack_of(stderr: str) -> list[tuple[str, ...]]:
    """The frames of the crashed thread, its innermost first, up to the script's own last one."""
    assert stderr.count("Fatal Python error: Segmentation fault") == 1, stderr
    frames = [match.groups() for line in stderr.splitlines() if (match := STACK.fullmatch(line))]
    last = max(n for n, (file, _, _) in enumerate(frames) if file.endswith("script.py"))
    return frames[: last + 1]


def stack_under_torchrun(place: Place) -> list[tuple[str, ...]]:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    env = {**place.env, **dict(STACKS)}
    done = run_program([*argv, "script.py"], cwd=place.folder, env=env)
    assert done.returncode == 1
    return stack_of(done.stderr)


def test_a_crash_leaves_its_python_stack_beside_the_log_and_not_in_it(place):
    place.write(CRASH)
    place.plan(max_restarts=0)
    assert place.run() == 1
    assert "Fatal Python error" not in (place.rank() / "stderr").read_text()
    (thread,) = parse_faulthandler((place.rank() / CRASHED_STACKS).read_text())
    assert [frame.function for frame in thread.frames][-2:] == ["read_the_data", "<module>"]


@pytest.mark.parametrize("start", ["fresh", "fork"])
def test_a_segfault_shows_its_python_stack_as_under_torchrun(place, start):
    place.write(CRASH)
    # The job asks for it, not whoever starts the agent.
    place.plan(env=STACKS, start=start, max_restarts=0)
    assert place.run() == 1
    found = stack_of((place.rank() / "stderr").read_text())
    theirs = stack_under_torchrun(place)
    assert [frame[1:] for frame in found] == [frame[1:] for frame in theirs]
    assert [frame[2] for frame in found][-2:] == ["read_the_data", "<module>"]
    assert "rank 0: SIGSEGV (11)" in place.console()
    assert place.outcome()["first"]["cause"] == "crashed"
    assert place.outcome()["first"]["exit_code"] == -11


@pytest.mark.parametrize("start", ["fresh", "fork"])
def test_without_the_variable_a_segfault_says_as_little_as_the_interpreter(place, start):
    place.write(CRASH)
    place.plan(start=start, max_restarts=0)
    assert place.run() == 1
    assert (place.rank() / "stderr").read_text() == ""
    assert place.outcome()["first"]["exit_code"] == -11


@pytest.mark.parametrize("stacks", [True, False])
def test_an_abort_is_told_by_what_was_said_before_the_stacks(place, stacks):
    place.write(ABORT)
    place.plan(env=STACKS if stacks else (), max_restarts=0)
    assert place.run() == 1
    assert ("Fatal Python error" in (place.rank() / "stderr").read_text()) is stacks
    (end,) = read_ends(place.rank().parent, place.run_dir)
    assert end.exception == "terminate called after throwing an instance of 'std::bad_alloc'"
    assert not (place.rank() / ERROR_FILE).exists()
    assert "rank 0: SIGABRT (6) (terminate called" in place.console()
