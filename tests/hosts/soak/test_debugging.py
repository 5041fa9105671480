"""``run --debug`` on hosts: a terminal that reaches the rank by ssh."""

from __future__ import annotations

import pytest

from tests.debugged import STOPS, debug_rank_1

pytestmark = pytest.mark.hosts


def test_a_rank_on_the_second_host_stops_in_pdb_in_this_terminal(typist):
    typist.write(STOPS)
    debug_rank_1(typist, "--nnodes", "2")
