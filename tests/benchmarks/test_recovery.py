"""The recovery benchmark: readers, tables, nothing left behind, and one real sample."""

import sys

import psutil
import pytest

from benchmarks.groups import find_first, parse_collectives
from benchmarks.trees import Trees

TOLD = "1.5 2 0 10\n1.6 2 1 11\n9.5 1 0 12\n9.4 1 0 13\n9.9 1"
FOREVER = (sys.executable, "-c", "import time; time.sleep(600)")
PARENT = (
    *(sys.executable, "-c"),
    "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True)\n"
    "time.sleep(600)",
)


@pytest.mark.parametrize(
    ("size", "old_pids", "at"),
    [(2, (), 1.5), (2, (10,), 1.6), (1, (), 9.4), (1, (13,), 9.5), (1, (12, 13), None)],
)
def test_the_first_collective_of_new_workers_in_a_world_is_found(size, old_pids, at):
    found = find_first(parse_collectives(TOLD), size, frozenset(old_pids))
    assert (found and found.at) == at


def test_no_process_of_a_tree_is_left_even_after_ctrl_c(tmp_path):
    with pytest.raises(KeyboardInterrupt), Trees(tmp_path, {}) as started:  # noqa: PT012
        started.start(PARENT)
        started.wait_for(lambda: len(started.living()) == 2, "a child in a session of its own")
        raise KeyboardInterrupt
    assert started.living() == []


def test_a_killed_tree_is_gone_and_its_neighbour_is_not(tmp_path):
    with Trees(tmp_path, {}) as started:
        root, other = started.start(PARENT), started.start(FOREVER)
        started.wait_for(lambda: psutil.Process(root.pid).children(), "a child")
        started.kill(root)
        started.wait_for(lambda: len(started.living()) == 1, "the tree's end")
        assert started.living()[0].pid == other.pid
