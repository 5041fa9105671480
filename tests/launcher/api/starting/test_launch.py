"""A run that is started: signals that end it, what a run in the background tells, streams."""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.api.starting import launch
from launcher.api.starting.launch import (
    ended_if_interrupted,
    follow_here,
    follow_in_background,
    keep_signals,
    open_streams,
)
from launcher.contract.causes import Cause
from launcher.contract.errors import InputError, TargetError
from launcher.contract.protocol import STOP_RUN_FILE
from launcher.follow import output_buffer
from launcher.follow.console import Console
from launcher.follow.lines import LineBlock
from launcher.follow.requests import KEEP, request_stop
from launcher.targets.local.target import LocalTarget
from tests.waiting import wait_until

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AT_ONCE = ""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("signals", "sends", "told"),
    [
        (SIGNALS[:1], False, "(interrupted), at most 7 s; Ctrl-C again ends it at once"),
        (SIGNALS[1:2], False, "(stop-requested), at most 7 s"),
        (SIGNALS[2:], False, "(interrupted), at most 7 s"),
        (SIGNALS[:2], False, AT_ONCE),
        (SIGNALS[:1], True, AT_ONCE),
    ],
)
def test_a_signal_stops_the_run_in_its_grace_and_a_second_one_or_one_while_code_is_sent_at_once(
    signals, sends, told, make_run, on_local
):
    def submit(target: LocalTarget, plan: object) -> None:
        target.is_sending = sends
        for number in signals:
            os.kill(os.getpid(), number)

    on_local(submit=submit)
    run, plan = make_run(stop_grace_s=7, follows=True)
    is_nohup, shown = signal.SIGHUP not in signals, io.StringIO()
    signal.signal(signal.SIGHUP, signal.SIG_IGN if is_nohup else signal.SIG_DFL)
    with contextlib.nullcontext() if told else pytest.raises(KeyboardInterrupt):
        follow_here(
            run,
            plan,
            LocalTarget(run.path.parent),
            Console(shown),
            verbose=False,
            on_submitted=lambda: print("submitted", file=shown),
        )
    ignored = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
    if told is AT_ONCE:
        assert ignored == [*SIGNALS]
    else:
        assert shown.getvalue() == f"submitted\nlauncher: stopping {told}\n"
        assert told.startswith(f"({run.read_outcome().cause})")
        is_closed = "terminal" in run.read_outcome().detail
        assert is_closed == (signal.SIGHUP in signals)
        assert ignored == [signal.SIGHUP] * is_nohup, "under nohup a hangup stays ignored"


def test_a_signal_before_the_run_is_followed_is_recorded_and_nothing_is_started(make_run, on_local):
    def submit(target: LocalTarget, plan: object) -> None:
        raise AssertionError("started")

    on_local(submit=submit)
    run, plan = make_run(follows=True)
    kept = keep_signals()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
    console = Console(io.StringIO())
    ended = follow_here(run, plan, LocalTarget(run.path.parent), console, verbose=False, kept=kept)
    assert ended.cause is run.read_outcome().cause is Cause.INTERRUPTED


def test_signals_just_before_and_just_as_the_run_is_followed_end_it_on_the_record(
    make_run, on_local, monkeypatch
):
    handle = launch._handle_ends

    def handle_and_hear(handler: Any) -> None:
        handle(handler)
        os.kill(os.getpid(), signal.SIGINT)

    run, plan = make_run(follows=True)
    target, console = LocalTarget(run.path.parent), Console(io.StringIO())
    monkeypatch.setattr(launch, "_handle_ends", handle_and_hear)
    with pytest.raises(KeyboardInterrupt):
        follow_here(run, plan, target, console, verbose=False, kept=[signal.SIGINT])
    assert run.read_outcome().cause is Cause.INTERRUPTED


@pytest.mark.parametrize("kind", [InputError, TargetError, None])
def test_a_run_in_the_background_tells_its_notes_up_to_the_start_and_why_there_is_none(
    kind, make_run, on_local
):
    def submit(target: LocalTarget, plan: object) -> None:
        target.notes.append("it pulls")
        if kind:
            raise kind("no image", "build it")

    on_local(submit=submit)
    run, plan = make_run(follows=True)
    request_stop(run, keep=False)
    said: list[str] = []
    with pytest.raises(kind) if kind else contextlib.nullcontext() as raised:
        follow_in_background(run, plan, LocalTarget(run.path.parent), said.append)
    assert said == ["it pulls"]
    assert not kind or (raised.value.what, raised.value.hint) == ("no image", "build it")
    log = run.path / "launcher.log"
    more = "error: no image\n  fix: build it" if kind else "stopping (stop-requested)"
    wait_until(lambda: f"launcher: it pulls\nlauncher: {more}" in log.read_text())
    wait_until(run.read_outcome)


def test_a_launcher_that_dies_in_the_background_is_told_with_its_log(make_run, on_local):
    on_local(submit=lambda *_: os._exit(9))
    run, plan = make_run(follows=True)
    with pytest.raises(TargetError, match=f"the launcher died; see {run.path}/launcher.log"):
        follow_in_background(run, plan, LocalTarget(run.path.parent), print)


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
