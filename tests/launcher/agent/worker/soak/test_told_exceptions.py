"""What is told of exceptions that are wrapped, silent, huge, or not fit for a terminal."""

import pytest

from tests.launcher.agent.place import free_port

SILENT = """
class Silent(Exception):
    def __str__(self):
        raise ValueError("no words")
raise Silent()
"""
HUGE = "raise ValueError('x' * 2_000_000)"
CONTROL = "raise ValueError('a\\x1b[2Jb\\x07\\x9b c')"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (SILENT, "Silent: <exception str() failed>"),
        (HUGE, f"ValueError: {'x' * 488}..."),
        (CONTROL, r"ValueError: a\x1b[2Jb\x07\x9b c"),
    ],
    ids=["silent", "huge", "control"],
)
def test_an_exception_is_told_in_one_line_that_a_terminal_can_show(place, script, told):
    place.write(script)
    place.plan(port=free_port())
    assert place.run() == 1, place.console()
    first = place.outcome()["first"]
    assert (first["exit_code"], first["exception"]) == (1, told)
