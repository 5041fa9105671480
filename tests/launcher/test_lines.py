from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.lines import MAX_LINE_BYTES, Line, LineSplitter


def split(*chunks: bytes) -> list[tuple[str, bool]]:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.flush()
    return [(line.text, line.is_progress) for line in lines]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"one\ntwo\n"], [("one", False), ("two", False)]),
        ([b"no end"], [("no end", False)]),
        ([b"10%\r20%\r", b"done\n"], [("10%", True), ("20%", True), ("done", False)]),
        ([b"windows\r\n"], [("windows", False)]),
        ([b"windows\r", b"\nnext\n"], [("windows", False), ("next", False)]),
        ([b"50%\r"], [("50%", True)]),
        ([b"\xff\xfe\n"], [("\\xff\\xfe", False)]),
        ([b"caf\xc3", b"\xa9\n"], [("café", False)]),
        ([b"\n\n"], [("", False), ("", False)]),
        ([b""], []),
    ],
)
def test_bytes_become_whole_lines(chunks: list[bytes], expected: list[tuple[str, bool]]) -> None:
    assert split(*chunks) == expected


@given(st.lists(st.binary(max_size=12)))
def test_the_cuts_between_reads_do_not_matter(chunks: list[bytes]) -> None:
    assert split(*chunks) == split(b"".join(chunks))


@given(st.lists(st.text(st.characters(exclude_characters="\r\n"), max_size=20)))
def test_no_character_of_utf8_text_is_lost(texts: list[str]) -> None:
    encodable = [t.encode("utf-8", "ignore").decode() for t in texts]
    data = "".join(t + "\n" for t in encodable).encode()
    assert [text for text, _ in split(data)] == encodable


def test_an_endless_line_is_shown_in_pieces_and_does_not_fill_the_memory() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"x" * (MAX_LINE_BYTES + 1)) == [Line(text="x" * MAX_LINE_BYTES)]
    assert splitter.flush() == [Line(text="x")]
