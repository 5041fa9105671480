"""The recovery benchmark: readers, tables, nothing left behind, and one real sample."""

import time

from benchmarks.groups import Setting
from benchmarks.recovery import time_restart


def test_one_worker_is_killed_and_the_next_collective_is_seen():
    began = time.monotonic()
    assert 0 < time_restart(Setting(side="agent")) < time.monotonic() - began
