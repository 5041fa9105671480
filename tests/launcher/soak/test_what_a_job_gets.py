"""Each row of the table "What a job gets" loses its other node."""

import pytest

from tests.launcher.claims import test_what_a_job_gets as claims


@pytest.mark.parametrize(("row", "index"), claims.losses(1))
def test_a_lost_node_does_what_the_row_says(launcher, row, index):
    claims.test_a_lost_node_does_what_the_row_says(launcher, row, index)
