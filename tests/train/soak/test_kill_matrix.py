"""The faults of the matrix that ``make claims`` leaves out."""

from __future__ import annotations

import pytest

from tests.train.claims import test_kill_matrix as claims
from tests.train.claims.test_kill_matrix import undisturbed


@pytest.mark.parametrize("fault", [fault for fault in claims.FAULTS if fault not in claims.QUICK])
def test_one_fault_leaves_no_trace_in_the_weights(tmp_path, clean, undisturbed, fault):
    claims.test_one_fault_leaves_no_trace_in_the_weights(tmp_path, clean, undisturbed, fault)
