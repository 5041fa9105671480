"""A run that is started: signals that end it, what a run in the background tells, streams."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from launcher.api.launch import (
    ended_if_interrupted,
    follow_here,
    follow_in_background,
    open_streams,
)
from launcher.contract.errors import InputError, LauncherError, TargetError
from launcher.contract.protocol import STOP_RUN_FILE
from launcher.follow import output_buffer
from launcher.follow.console import Console
from launcher.follow.lines import LineBlock
from launcher.follow.requests import KEEP, request_stop
from launcher.targets.local.target import LocalTarget
from tests.waiting import wait_until

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = "; Ctrl-C again ends it at once"


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Lines(Console):
    """A console that keeps its lines."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def start(make_run: Any, on_local: Callable[..., None]) -> Callable[..., Any]:
    """Follows a run by ``follow``, whose nodes are not started: ``submit`` is called instead."""

    def started(follow: Callable[..., Any], submit: Callable[[LocalTarget], object]) -> Any:
        run, plan = make_run(stop_grace_s=7, follows=True)
        on_local(submit=lambda target, plan: submit(target), stop=lambda *_: None)
        return run, follow(run, plan, LocalTarget(run.path.parent))

    return started


@pytest.mark.parametrize(
    ("signals", "cause", "told"),
    [
        ([signal.SIGINT], "interrupted", f"stopping (interrupted), at most 7 s{AGAIN}"),
        ([signal.SIGTERM], "stop-requested", "stopping (stop-requested), at most 7 s"),
        ([signal.SIGHUP], "interrupted", "stopping (interrupted), at most 7 s"),
    ],
)
def test_the_first_signal_stops_the_run_within_its_grace(signals, cause, told, start):
    console, submitted = Lines(), list[str]()

    def follow(*words: Any) -> Any:
        here = {"verbose": False, "on_submitted": lambda: submitted.append("once")}
        return follow_here(*words, console, **here)

    run, outcome = start(follow, lambda _: [os.kill(os.getpid(), number) for number in signals])
    assert (outcome.cause, run.read_outcome(), submitted) == (cause, outcome, ["once"])
    assert f"launcher: {told}" in console.lines


@pytest.mark.parametrize(("signals", "sends"), [(SIGNALS[:2], False), (SIGNALS[:1], True)])
def test_a_second_signal_ends_it_at_once_as_the_first_does_while_code_is_sent(
    signals, sends, start
):
    def submit(target: LocalTarget) -> None:
        target.is_sending = sends
        for number in signals:
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        start(lambda *words: follow_here(*words, Lines(), verbose=False), submit)
    assert {signal.getsignal(number) for number in SIGNALS} == {signal.SIG_IGN}


def test_under_nohup_a_hangup_stays_ignored(start):
    def handler(number: int, frame: FrameType | None) -> None:
        pass

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start(
        lambda *words: follow_here(*words, Lines(), verbose=False),
        lambda _: os.kill(os.getpid(), signal.SIGTERM),
    )
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN


def fail_with(error: LauncherError) -> Callable[[LocalTarget], None]:
    def submit(target: LocalTarget) -> None:
        target.notes.append("it pulls")
        raise error

    return submit


@pytest.mark.parametrize("kind", [InputError, TargetError])
def test_what_fails_in_the_background_fails_here_and_stands_in_the_log(kind, start, tmp_path):
    said: list[str] = []
    submit = fail_with(kind("no such image", "build it"))
    with pytest.raises(kind) as raised:
        start(lambda *words: follow_in_background(*words, said.append), submit)
    assert (raised.value.what, raised.value.hint) == ("no such image", "build it")
    assert said == ["it pulls"]
    log = tmp_path / "digits-0a1b2c/launcher.log"
    wait_until(lambda: "launcher: error: no such image\n  fix: build it" in log.read_text())


def test_a_launcher_that_dies_in_the_background_is_told_with_its_log(start, tmp_path):
    with pytest.raises(TargetError, match=f"the launcher died; see {tmp_path}/digits.*/launcher.l"):
        start(lambda *words: follow_in_background(*words, print), lambda _: os._exit(9))


def test_a_run_in_the_background_tells_its_notes_up_to_the_start_and_goes_on(start, tmp_path):
    said: list[str] = []

    def follow(run: Any, plan: Any, target: LocalTarget) -> None:
        request_stop(run, keep=False)
        follow_in_background(run, plan, target, said.append)

    run, _ = start(follow, lambda target: target.notes.append("it pulls"))
    assert said == ["it pulls"]
    wait_until(lambda: run.read_outcome())
    assert run.read_outcome().cause == "stop-requested"
    assert "launcher: it pulls\nlauncher: stopping" in (run.path / "launcher.log").read_text()


def test_ctrl_c_before_the_run_is_named_ends_it_and_is_ignored_afterwards(make_run):
    run, _ = make_run()
    with ended_if_interrupted(run):
        pass
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert not (run.path / STOP_RUN_FILE).exists()
    with pytest.raises(KeyboardInterrupt), ended_if_interrupted(run):
        raise KeyboardInterrupt
    assert (run.path / STOP_RUN_FILE).read_text() != KEEP


def write(size: int = 1) -> None:
    with open_streams(shows="launcher logs a") as console:
        console.note("began")
        console.show(LineBlock(data=b"x" * size + b"\n"), stream="stdout")
        console.note("ended")


def test_streams_that_lead_to_the_same_place_keep_their_order_and_no_reader_holds_up_the_end(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(output_buffer, "STALL_S", 0.1)
    began, ended, reader = "launcher: began\n", "launcher: ended\n", os.pipe()
    files = {name: (tmp_path / name).open("w") for name in ("out", "err")}
    files |= {"closed": None, "paused": os.fdopen(reader[1], "w")}  # type: ignore[dict-item]
    monkeypatch.setattr(sys, "stderr", files["err"])
    missed = "launcher: not all of stdout was read; all of it: launcher logs a\n"
    for stdout, out, err in (
        ("out", "x\n", began + ended),
        ("err", "", f"{began}x\n{ended}"),
        ("closed", "", began + ended),
        ("paused", "", began + ended + missed),
    ):
        monkeypatch.setattr(sys, "stdout", files[stdout])
        write(1 << 20 if stdout == "paused" else 1)
        assert [(tmp_path / name).read_text() for name in ("out", "err")] == [out, err]
        for name in ("out", "err"):
            os.truncate(tmp_path / name, 0)
            files[name].seek(0)
    os.close(reader[0])
