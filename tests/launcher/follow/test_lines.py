import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.follow.lines import MAX_LINE_BYTES, BlockSplitter, LineBlock


def split(*chunks: bytes, **how: bool) -> list[tuple[str, bool]]:
    splitter = BlockSplitter(**how)
    blocks = [block for chunk in chunks for block in splitter.feed(chunk)] + splitter.flush()
    assert all(block.is_progress or block.data.endswith(b"\n") for block in blocks)
    return [
        (text.decode(), block.is_progress)
        for block in blocks
        for text in ([block.data] if block.is_progress else block.data[:-1].split(b"\n"))
    ]


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
def test_bytes_become_whole_lines(chunks, expected):
    assert split(*chunks) == expected


@given(st.lists(st.binary(max_size=12)), st.booleans())
def test_the_cuts_between_reads_do_not_matter(chunks, keeps):
    assert split(*chunks, keeps_returns=keeps) == split(b"".join(chunks), keeps_returns=keeps)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n"), max_size=20)))
def test_no_character_of_utf8_text_is_lost(texts):
    encodable = [t.encode("utf-8", "ignore").decode() for t in texts]
    data = "".join(t + "\n" for t in encodable).encode()
    assert [text for text, _ in split(data)] == encodable


def test_an_endless_line_is_shown_in_pieces_and_does_not_fill_the_memory():
    splitter = BlockSplitter()
    assert splitter.feed(b"x" * (MAX_LINE_BYTES + 1)) == [
        LineBlock(data=b"x" * 65_536 + b"\n", is_cut=True)
    ]
    assert splitter.flush() == [LineBlock(data=b"x\n")]


@pytest.mark.parametrize("before", range(4))
def test_a_line_is_never_cut_within_a_character(before):
    text = "x" * (MAX_LINE_BYTES - before) + "\N{GRINNING FACE}" * 5
    splitter = BlockSplitter()
    blocks = splitter.feed(text.encode()) + splitter.flush()
    assert [len(block.data) - 1 for block in blocks] == [MAX_LINE_BYTES - before, 20]
    assert "".join(block.data.decode().removesuffix("\n") for block in blocks) == text


def test_where_returns_are_kept_they_are_bytes_like_any_other():
    assert split(b"10%\r20%\rdone\r\n", b"50%\r", keeps_returns=True) == [
        ("10%\r20%\rdone\r", False),
        ("50%\r", False),
    ]


def test_lines_that_came_together_stay_one_block_and_each_gets_the_prefix():
    (block,) = BlockSplitter().feed(b"one\n\ntwo\nrest")
    assert block == LineBlock(data=b"one\n\ntwo\n")
    assert block.with_prefix(b"[0/1] ") == b"[0/1] one\n[0/1] \n[0/1] two\n"
    assert block.with_prefix(b"") == block.data
