"""The recording of the first page is one of a real run, and holds nothing of the machine."""

from docs.record import PICTURE

LINES = ("$ launcher run", "rank 0 of 2", "kill -9", "replacing it", "rank 0 of 1", "SUCCEEDED")


def check(picture: str) -> None:
    found = [picture.index(line) for line in LINES]
    assert found == sorted(found)
    assert "/tmp/" not in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_the_recording_shows_a_run_that_goes_on_without_a_node():
    check(PICTURE.read_text("utf-8"))
