"""Every fault in every phase, each in a run of its own."""

import pytest

from tests.train.claims.test_kill_matrix import FAULTS, run, undisturbed


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_leaves_no_trace_in_the_weights(tmp_path, clean, undisturbed, fault):
    outcome, _ = run(tmp_path, clean, [fault])
    assert outcome["metrics"]["weights_sha256"] == undisturbed
