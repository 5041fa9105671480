"""Which lines of a log are told, with their time, place and writer."""

import io
from typing import Any

import pytest

from launcher.contract import protocol
from launcher.verdict import scan
from launcher.verdict.log_line import LogLine
from launcher.verdict.scan import find_in_both, find_telling, read_both, read_time, strip_colours

PLACE = LogLine(file="log", node=3)
TRACE = """\
Traceback (most recent call last):
  File "/code/train.py", line 12, in <module>
    step()
  File "/venv/lib/python3.11/site-packages/torch/nn.py", line 7, in step
    raise KeyError
"""


def told(text: str, place: LogLine = PLACE) -> list[tuple[Any, ...]]:
    found = find_telling(text.encode().split(b"\n"), place)
    return [
        (one.number, one.text, one.frame, one.is_own, one.raised)
        if one.raised
        else (one.number, one.text)
        for one in found
    ]


def test_an_exception_is_told_with_the_innermost_line_of_the_users_own_code():
    assert told(f"a\n{TRACE}KeyError: 'x'\nb") == [(7, "KeyError: 'x'", "train.py:12", False, True)]
    own = TRACE.replace("/venv/lib/python3.11/site-packages/torch/nn.py", "/code/net.py")
    assert told(f"{own}KeyError: 'x'") == [(6, "KeyError: 'x'", "net.py:7", True, True)]
    agents = TRACE.replace("/venv/lib/python3.11/site-packages/torch/nn.py", "__main__.py")
    assert told(f"{agents}KeyError: 'x'") == [(6, "KeyError: 'x'", "train.py:12", False, True)]
    unread = '  File "/code/my train.py", line 2\n    x = [1\n        ^\nSyntaxError: bad'
    assert told(f"a\n{unread}") == [(5, "SyntaxError: bad", "my train.py:2", True, True)]
    assert told(f"{own}no exception failed") == [(6, "no exception failed")]
    inside = "".join(f"    {line}\n" for line in f"{own}KeyError: 'x'".splitlines())
    assert told(f"{inside}error: end") == [
        (6, "KeyError: 'x'", "net.py:7", True, True),
        (7, "error: end"),
    ]
    two = f"[rank0]: {TRACE.splitlines()[0]}\n[rank1]: error: b\n[rank0]: a.Error: c"
    found = list(find_telling(two.encode().split(b"\n"), PLACE))
    assert [(one.rank, one.text, one.raised) for one in found] == [
        (1, "error: b", False),
        (0, "a.Error: c", True),
    ]
    assert {one.node for one in found} == {3}


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/code/train.py", line 7, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/code/data.py", line 5, in load
    |     open(name)
    | KeyError: 'shard'
    +---------------- 2 ----------------
    | ValueError: never raised
    +------------------------------------
"""


def test_a_group_of_exceptions_is_told_with_those_inside_it():
    assert told("".join(f"[rank1]: {line}\n" for line in GROUP.splitlines())) == [
        (4, "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)", "train.py:7",
         True, True),
        (9, "KeyError: 'shard'", "data.py:5", True, True),
        (11, "ValueError: never raised"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("begin", "sides"),
    [
        ("", [False]),
        ("Exception in thread Thread-1 (push):\n", [True]),
        ("Exception ignored in: <function x>\n", [True]),
        ("Task exception was never retrieved\n", [True]),
        (f"Exception in thread Thread-1:\n{TRACE}OSError: a\nDuring handling of the above exception"
         ", another\n", [True, True]),
        (f"Exception in thread Thread-1:\n{TRACE}OSError: a\n", [True, False]),
    ],
)  # fmt: skip
def test_an_exception_beside_the_main_thread_is_marked(begin, sides):
    found = find_telling(f"{begin}{TRACE}KeyError: 'x'".encode().split(b"\n"), PLACE)
    assert [one.is_side for one in found if one.raised] == sides


def test_of_lines_that_differ_only_in_numbers_the_first_is_told():
    lines = ["step 1 failed", "step 2 failed", "nothing here", "n1 failed", "n2 failed"]
    lines += ["frame #1: failed", f"error {'x' * 3000}", "caught in DataLoader worker process 1."]
    found = told("\n".join(lines))
    assert found == [
        (1, "step 1 failed"),
        (4, "n1 failed"),
        (5, "n2 failed"),
        (7, f"error {'x' * 1994}"),
    ]


def test_a_line_has_its_own_time_and_an_exception_that_of_a_line_shortly_before():
    at = 1_700_000_000.0
    begun = "2023-11-14 22:13:20 error: a"
    for gap, said_at in ((0, at), (22, at), (23, 0.0)):
        lines = [begun, "error: b", *["x"] * gap, *TRACE.splitlines(), "KeyError: 'x'"]
        found = list(find_telling("\n".join(lines).encode().split(b"\n"), PLACE))
        assert [one.at for one in found] == [at, 0.0, said_at]
    placed = find_telling([b"error"], LogLine(file="log", at=7.0))
    assert [one.at for one in placed] == [7.0]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2023-11-14T22:13:20.5Z error", 1_700_000_000.5),
        ("2023-11-14_22:13:20,25", 1_700_000_000.25),
        ("[E1114 22:13:20.25 x.cpp] error", 27_468_800.25),
        ("I114 22:13:20", 1_203_200.0),
        ("2023-13-14 22:13:20", 0.0),
        (f"{'x' * 110}2023-11-14 22:13:20", 0.0),
        ("no time", 0.0),
    ],
)
def test_a_time_is_read_as_utc(text, at):
    assert read_time(text) == at


def test_a_pod_is_named_by_the_line_or_by_the_description_around_it():
    lines = [
        "Name: bert-1",
        "error: a",
        "bert-worker-2 0/1 Error",
        'pods "t-3" not found',
        "error: b",
    ]
    lines += ["error: the pod x-worker-0 failed"]
    found = find_telling("\n".join(lines).encode().split(b"\n"), LogLine())
    assert [one.pod for one in found] == [
        "bert-1",
        "bert-1",
        "bert-worker-2",
        "t-3",
        "bert-1",
        "bert-1",
    ]
    (line,) = find_telling([lines[-1].encode()], LogLine())
    assert line.pod == "x-worker-0"


class Pipe(io.RawIOBase):
    """Gives its chunks, then ends or is interrupted."""

    def __init__(self, chunks: list[bytes], *, interrupted: bool = False) -> None:
        self.chunks, self.interrupted = chunks, interrupted

    def seekable(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        if not self.chunks and self.interrupted:
            raise KeyboardInterrupt
        return self.chunks.pop(0) if self.chunks else b""


def test_of_a_text_its_start_and_its_end_are_read(monkeypatch):
    monkeypatch.setattr(scan, "HEAD_BYTES", 4)
    monkeypatch.setattr(scan, "TAIL_BYTES", 6)
    text = b"abcdefghijklmnopqrstuvwxyz"
    for most, both in (
        (26, (text, b"", 0)),
        (25, (b"abcd", b"uvwxyz", 16)),
        (8, (b"ab", b"uvwxyz", 18)),
        (5, (b"a", b"wxyz", 21)),
    ):
        assert read_both(io.BytesIO(text), most) == both, most  # type: ignore[arg-type]
    for size, interrupted in ((1, False), (1, True), (7, False), (13, False), (26, False)):
        chunks = [text[at : at + size] for at in range(0, 26, size)]
        pipe = Pipe(chunks, interrupted=interrupted)
        head, tail, between = read_both(pipe, 5)  # type: ignore[arg-type]
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + len(tail) + between == 26
        assert len(head) == {1: 4, 7: 7, 13: 13, 26: 26}[size]
        assert len(tail) == {1: 8, 7: 11, 13: 6}.get(size, 0)


def test_what_stands_at_a_texts_start_and_end_is_told_once():
    head = b"gpu1: error: a\ngpu2: b\ngpu3: error: c"
    tail = b"cut error: d\ngpu1: error: a\ngpu2: error: e"
    found = [(one.number, one.host, one.text) for one in find_in_both(head, tail, PLACE)]
    assert found == [
        (0, "gpu1", ""),
        (0, "gpu2", ""),
        (0, "gpu3", ""),
        (1, "gpu1", "error: a"),
        (3, "gpu3", "error: c"),
        (0, "gpu2", "error: e"),
    ]
    many = "\n".join(f"error: {chr(0x4E00 + at)}" for at in range(3000)).encode()
    kept = find_in_both(many, b"", PLACE)
    assert (len(kept), kept[999].number, kept[1000].number) == (2000, 1000, 2001)


def test_what_an_earlier_start_of_a_job_has_left_is_not_told():
    again = f"{protocol.STARTS_AGAIN}\n".encode()
    for head, tail, lines in (
        (b"error: a\n" + again + b"error: b", b"", [(3, "error: b")]),
        (b"error: a", b"cut\n" + again + b"error: c\n" + again + b"error: b", [(0, "error: b")]),
        (b"error: a\n" + again + b"error: b", b"cut\nerror: c", [(3, "error: b"), (0, "error: c")]),
    ):
        found = [(one.number, one.text) for one in find_in_both(head, tail, PLACE)]
        assert [line for line in found if "error" in line[1]] == lines


def test_a_viewers_colours_and_carriage_returns_are_no_part_of_a_line():
    assert strip_colours(b"\x1b[31ma\x1b[0m\r\nb\rc\r\n") == b"a\nb\rc\n"
    assert strip_colours(b"a\rb\r") == b"a\rb\r"
