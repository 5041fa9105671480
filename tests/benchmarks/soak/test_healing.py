"""The healing benchmark: one real sample of ours."""

from benchmarks.healing import agents, lose


def test_a_killed_node_costs_no_step():
    assert lose(agents(2)).again == 0
