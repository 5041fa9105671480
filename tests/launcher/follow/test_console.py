from __future__ import annotations

import io

from launcher.follow.console import PROGRESS_INTERVAL_S, Console
from launcher.follow.lines import LineBlock
from tests.waiting import StoppedClock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_console(*, terminal: bool) -> tuple[Console, io.StringIO, StoppedClock]:
    stream, clock = Terminal() if terminal else io.StringIO(), StoppedClock()
    return Console(stream, clock=clock), stream, clock


def screen(text: str) -> list[str]:
    """The rows a terminal would show of what was written."""
    rows = [""]
    for part in text.replace("\x1b[K", "\x00").splitlines(keepends=True):
        for piece in part.rstrip("\n").split("\r"):
            rows[-1] = piece.replace("\x00", "") if piece.startswith("\x00") else rows[-1] + piece
        if part.endswith("\n"):
            rows.append("")
    return rows


def test_lines_of_other_ranks_never_tear_the_progress_bar() -> None:
    console, stream, _ = open_console(terminal=True)
    console.progress("step 1 of 9")
    console.line("from rank 1")
    console.progress("step 2 of 9")
    assert screen(stream.getvalue()) == ["from rank 1", "step 2 of 9"]


def test_the_last_progress_stays_on_the_screen() -> None:
    console, stream, _ = open_console(terminal=True)
    console.progress("step 9 of 9")
    console.close()
    assert screen(stream.getvalue()) == ["step 9 of 9", ""]


def test_without_a_terminal_progress_becomes_a_plain_line_now_and_then() -> None:
    console, stream, clock = open_console(terminal=False)
    for step in range(3):
        console.progress(f"step {step}")
    clock.sleep(PROGRESS_INTERVAL_S)
    console.progress("step 3")
    assert stream.getvalue() == "step 0\nstep 3\n"


def test_prefixes_are_coloured_on_a_terminal_only() -> None:
    for terminal in (True, False):
        console, stream, _ = open_console(terminal=terminal)
        console.show(LineBlock(data=b"text\n"), stream="stderr", prefix="[1/3]", colour_key=3)
        assert ("\x1b[32m[1/3]\x1b[0m text" in stream.getvalue()) == terminal
        assert stream.getvalue().endswith("text\n" if not terminal else "")


def test_workers_stdout_has_a_stream_of_its_own_which_leaves_the_progress_bar_alone() -> None:
    err, out = Terminal(), io.StringIO()
    console = Console(err, out=out)
    console.progress("step 1 of 9")
    console.end_progress("stdout")
    console.show(LineBlock(data=b"one\ntwo\n"), stream="stdout", prefix="[0/1]", colour_key=1)
    assert out.getvalue() == "[0/1] one\n[0/1] two\n", "no colours: it is no terminal"
    console.show(LineBlock(data=b"three\n"), stream="stderr", prefix="[0/1]", colour_key=1)
    assert screen(err.getvalue())[-2:] == ["\x1b[33m[0/1]\x1b[0m three", "step 1 of 9"]


def test_without_a_terminal_a_line_of_progress_has_its_prefix() -> None:
    console, stream, _ = open_console(terminal=False)
    console.progress(" 10% ", prefix="[0/0]")
    assert stream.getvalue() == "[0/0] 10%\n"


class Gone(io.StringIO):
    """A pipe whose reader has gone."""

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_stream_that_takes_no_more_ends_no_run() -> None:
    console = Console(Gone())
    console.show(LineBlock(data=b"one\n"), stream="stdout")
    console.note("two")


def test_a_cut_line_is_whole_again_where_one_worker_writes_and_in_pieces_behind_prefixes() -> None:
    for prefix, shown in (("", "abcdef\n"), ("[0/1]", "[0/1] abc\n[0/1] def\n")):
        console, stream, _ = open_console(terminal=False)
        console.show(LineBlock(data=b"abc\n", is_cut=True), stream="stdout", prefix=prefix)
        console.show(LineBlock(data=b"def\n"), stream="stdout", prefix=prefix)
        assert stream.getvalue() == shown
