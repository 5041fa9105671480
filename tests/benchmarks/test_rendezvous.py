"""What ``rendezvous`` measures is what a run does. Times are never asserted."""

from benchmarks.rendezvous import time_decisions


def test_the_decisions_that_are_timed_end_with_ranks():
    assert time_decisions(8) > 0
