"""The recording of the first page is one of a real run, and holds nothing of the machine."""

from docs.record import record, render
from tests.docs.test_recording import check


def test_it_can_be_recorded_anew(tmp_path):
    check(render(record(tmp_path), tmp_path))
