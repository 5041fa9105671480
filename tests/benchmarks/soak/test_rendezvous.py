"""What ``rendezvous`` measures is what a run does. Times are never asserted."""

from benchmarks.rendezvous import meet


def test_real_nodes_meet_and_are_told_of_a_loss():
    found = meet("roster", 4, 60)
    assert all(value is not None for value in found.values())
    theirs = meet("c10d", 4, 60)
    assert theirs["sealed_s"] is not None
