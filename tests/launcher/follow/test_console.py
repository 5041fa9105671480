import io

from launcher.contract import protocol
from launcher.follow.console import (
    DEBUGGER,
    Console,
    paint_prefix,
    prefix_of,
)
from launcher.follow.lines import LineBlock
from launcher.follow.output_buffer import OutputBuffer
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


def test_lines_of_other_ranks_never_tear_the_progress_bar():
    console, stream, _ = open_console(terminal=True)
    console.progress("step 1 of 9")
    console.line("from rank 1")
    console.progress("step 2 of 9")
    assert screen(stream.getvalue()) == ["from rank 1", "step 2 of 9"]


def test_the_last_progress_stays_on_the_screen():
    console, stream, _ = open_console(terminal=True)
    console.progress("step 9 of 9")
    console.close()
    assert screen(stream.getvalue()) == ["step 9 of 9", ""]


def test_without_a_terminal_progress_becomes_a_plain_line_every_five_seconds():
    console, stream, clock = open_console(terminal=False)
    for slept_s in (0, 4.9, 0.1, 4.9):
        clock.sleep(slept_s)
        console.progress(f" at {clock.now:g} s ", prefix="[0/0]")
    assert stream.getvalue() == "[0/0] at 0 s\n[0/0] at 5 s\n"


def test_prefixes_are_coloured_on_a_terminal_only():
    for terminal in (True, False):
        console, stream, _ = open_console(terminal=terminal)
        console.show(LineBlock(data=b"text\n"), stream="stderr", prefix="[1/3]", colour_key=3)
        assert ("\x1b[32m[1/3]\x1b[0m text" in stream.getvalue()) == terminal
        assert stream.getvalue().endswith("text\n" if not terminal else "")


def test_workers_stdout_has_a_stream_of_its_own_which_leaves_the_progress_bar_alone():
    err, out = Terminal(), io.StringIO()
    console = Console(err, out=out)
    console.progress("step 1 of 9")
    console.end_progress("stdout")
    console.show(LineBlock(data=b"one\ntwo\n"), stream="stdout", prefix="[0/1]", colour_key=1)
    assert out.getvalue() == "[0/1] one\n[0/1] two\n", "no colours: it is no terminal"
    console.show(LineBlock(data=b"three\n"), stream="stderr", prefix="[0/1]", colour_key=1)
    assert screen(err.getvalue())[-2:] == ["\x1b[33m[0/1]\x1b[0m three", "step 1 of 9"]


class Gone(io.StringIO):
    """A pipe whose reader has gone."""

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_stream_that_takes_no_more_ends_no_run():
    console = Console(Gone())
    console.show(LineBlock(data=b"one\n"), stream="stdout")
    console.note("two")


def test_a_cut_line_is_whole_again_where_one_worker_writes_and_in_pieces_behind_prefixes():
    for prefix, shown in (("", "abcdef\n"), ("[0/1]", "[0/1] abc\n[0/1] def\n")):
        console, stream, _ = open_console(terminal=False)
        console.show(LineBlock(data=b"abc\n", is_cut=True), stream="stdout", prefix=prefix)
        console.show(LineBlock(data=b"def\n"), stream="stdout", prefix=prefix)
        assert stream.getvalue() == shown


def test_a_prompt_stays_below_all_other_lines_until_its_answer():
    console, stream, _ = open_console(terminal=True)
    console.progress("step 1 of 9")
    console.show_debugger("> train.py(3)\n-> x\n(Pdb) ")
    console.line("from rank 1")
    assert screen(stream.getvalue()) == ["> train.py(3)", "-> x", "from rank 1", "(Pdb) "]
    console.show_debugger(f"p x{protocol.ANSWERED}1")
    console.show_debugger("2\n")
    assert screen(stream.getvalue())[-2:] == ["p x12", ""]
    console.show_debugger("(com) ")
    assert screen(stream.getvalue())[-1] == "(com) "
    console.end_progress(DEBUGGER)
    console.line("end")
    assert screen(stream.getvalue())[-2:] == ["end", ""]


def test_the_launchers_own_lines_are_marked_and_a_lost_stdout_is_told(monkeypatch):
    console, stream, _ = open_console(terminal=False)
    console.note("a\udcff")
    console.note_lost_stdout("Broken pipe")
    console.is_ending = True
    console.note_lost_stdout("x")
    shows = Console(stream, shows="launcher logs a")
    shows.note_lost_stdout("y")
    assert stream.getvalue() == (
        "launcher: a\\udcff\n"
        "launcher: stdout cannot be written any more (Broken pipe); the run goes on\n"
        "launcher: stdout cannot be written any more (x)\n"
        "launcher: stdout cannot be written any more (y); the run goes on; its output: "
        "launcher logs a\n"
    )
    console, stream, _ = open_console(terminal=True)
    console.note("a")
    assert "\x1b[1mlauncher:\x1b[0m a" in stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "")
    console, stream, _ = open_console(terminal=True)
    console.note("a")
    assert "\x1b[1m" not in stream.getvalue()


def test_returns_stay_where_stdout_goes_to_no_terminal(tmp_path):
    terminal, file = Terminal(), io.StringIO()
    assert Console(terminal, out=file).keeps_returns
    assert not Console(file, out=terminal).keeps_returns
    assert not Console(terminal, out=file).copies_stdout
    buffer = OutputBuffer((tmp_path / "out").open("w"))
    assert Console(terminal, out=buffer).copies_stdout
    assert not Console(buffer).copies_stdout, "notes go there too"
    assert Console(file).has_room("stdout")
    assert Console(file).wait_for_room("stderr")


def test_each_rank_has_its_prefix_and_its_colour():
    assert (prefix_of(1, 5), prefix_of(0, None)) == ("[1/5]", "[0/agent]")
    colours = [paint_prefix("a", key) for key in (-1, 0, 5, 12)]
    assert colours == [f"\x1b[{code}ma\x1b[0m" for code in (1, 36, 31, 36)]
    assert len({paint_prefix("a", key) for key in range(6)}) == 6


def test_a_live_line_is_never_wider_than_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    console, stream, _ = open_console(terminal=True)
    console.progress("0123456789")
    assert screen(stream.getvalue()) == ["012345678"]
    console.close()
    console.close()
    assert stream.getvalue().count("\n") == 1
