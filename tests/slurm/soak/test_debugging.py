"""``run --debug`` on Slurm: a terminal that reaches the rank by a step beside it."""

from __future__ import annotations

import pytest

from tests.debugged import STOPS, debug_rank_1
from tests.slurm.typist import ALLOCATION, PREFIX

pytestmark = pytest.mark.slurm


def test_a_rank_on_the_second_node_stops_in_pdb_in_this_terminal(typist):
    typist.write(STOPS, PREFIX + ALLOCATION)
    debug_rank_1(typist, "--on", "slurm", "--nnodes", "2")
