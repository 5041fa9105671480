"""The corpus is whole: each fault lies in its part, has a known cause and what it left."""

import pytest

from tests.faults import making
from tests.faults.test_faults import FAULTS, reason_of


@pytest.mark.mount
@pytest.mark.parametrize(
    "fault", [one for one in FAULTS if one.made == "processes"], ids=lambda one: one.name
)
def test_each_fault_on_processes_made_anew_ends_as_its_recording_does(fault, tmp_path):
    assert reason_of(making.make(fault, tmp_path / "project")) == reason_of(fault.recording)
