"""The watchdog looks at workers that hang while they are still there. A process in their place."""

import json
import os
import signal
import threading
import time

import pytest

from launcher.agent import processes
from launcher.agent.engine.monitoring.look import NO_ANSWER, Looker
from launcher.agent.engine.monitoring.stacks import parse_py_spy
from launcher.agent.engine.monitoring.watchdog import Watchdog
from launcher.agent.ledger import AgentLedger
from launcher.agent.worker import recorder
from launcher.agent.worker.start import STACKS_SIGNAL
from launcher.contract import protocol
from launcher.contract.clock import SystemClock
from launcher.contract.node_plan import AgentSettings
from launcher.contract.process_stat import is_stopped
from launcher.contract.reports.look import (
    LOOK_REQUEST,
    Frame,
    look_dir,
    parse_printed_looks,
    read_look,
    read_looks,
    read_stacks,
)
from tests.waiting import StoppedClock, wait_until

THREADS = json.dumps(
    [
        {"thread_name": "loader", "os_thread_id": 2, "frames": []},
        {
            "thread_name": "MainThread",
            "os_thread_id": 1,
            "frames": [{"name": "step", "filename": "/t.py", "line": 7}],
        },
    ]
)
"""What a worker's own thread writes."""


def test_a_hang_is_looked_at_before_its_workers_are_killed(attempts, worker, tmp_path):
    clock = SystemClock()
    ledger = AgentLedger(tmp_path / "ledger.jsonl", clock, node_index=0, incarnation=0)
    settings = AgentSettings(hang_min_s=0.2, hang_max_s=0.5)
    watchdog = Watchdog(attempts, settings, ledger, Looker(attempts, clock), clock)

    def is_killed() -> bool:
        watchdog.poll()
        time.sleep(0.05)  # two looks are at least a second apart, whatever the load
        return worker.poll() is not None

    wait_until(is_killed)
    (seen,) = read_looks(attempts.node_dir)
    assert (seen.why, [one.rank for one in seen.ranks]) == ("hang", [0])
    stacks = read_stacks(look_dir(attempts.node_dir, seen.id), 0)
    assert [frame.function for frame in stacks.threads[0].frames][:1] == ["hangs"]


@pytest.mark.parametrize(("why", "is_told"), [("stop", True), ("asked", False)])
def test_a_look_before_a_stop_says_where_each_rank_is(attempts, worker, capfd, why, is_told):
    Looker(attempts, SystemClock()).take_look(why)
    told = parse_printed_looks(capfd.readouterr().err)
    heard = [(one.look.rank, one.stacks.threads[0].frames[0].function) for one in told]
    assert heard == ([(0, "hangs")] if is_told else [])


@pytest.mark.parametrize(
    ("request_", "ends_s", "leaves_s"),
    [
        ({"why": "asked"}, 4.0, 1.5),
        ({"why": "hang", "native": True}, 4.0, 0.7),
        ({"why": "stop"}, 0.8 + 1.2, 0.6),
        ({"why": "loss", "stacks": False}, 0.3, None),
    ],
)
def test_a_look_ends_at_its_limit_and_leaves_faulthandler_a_part_of_it(
    request_, ends_s, leaves_s, attempts, start_worker, py_spy, monkeypatch
):
    """Nothing answers: py-spy is slow, the signal is lost, torch's recorder is busy."""
    (place,) = attempts.begin({0: 0})
    start_worker(place)
    py_spy("exec sleep 60")
    asking, answer = recorder.asking(place.heartbeat), recorder.answer(place.heartbeat)
    os.mkfifo(asking)
    answer.write_text("of an earlier look")
    reader, sent = os.open(asking, os.O_RDONLY | os.O_NONBLOCK), []
    monkeypatch.setattr(processes, "send", lambda _, signum: sent.append((signum, clock.now)))
    looker = Looker(
        attempts, StoppedClock(on_sleep=lambda _: others.append(looker.take_look("asked")))
    )
    clock, others = looker._clock, []
    folder = looker.take_look(**request_)
    os.close(reader)
    assert clock.now == pytest.approx(ends_s, abs=0.021)
    assert {*others} == {None}, "one look at a time"
    asked_at = [at for signum, at in sent if signum == STACKS_SIGNAL]
    assert asked_at == ([pytest.approx(ends_s - leaves_s, abs=0.021)] if leaves_s else [])
    (seen,) = read_look(folder).ranks
    assert seen.no_collectives == NO_ANSWER
    late = "it did not answer the signal for its stacks; py-spy took too long"
    assert seen.no_stacks == (late if leaves_s else "not taken, so that the restart need not wait")


@pytest.mark.parametrize(
    ("written", "taken_by", "function"),
    [(THREADS, "worker", "step"), ("[no JSON", "", ""), (None, "", "")],
    ids=["written", "no JSON", "nothing"],
)
def test_without_py_spy_a_worker_s_thread_tells_and_faulthandler_where_it_has_not(
    written, taken_by, function, attempts, start_worker, py_spy, monkeypatch
):
    """Faulthandler crashed workers whose frames it read while that thread ran."""
    (place,) = attempts.begin({0: 0})
    start_worker(place)
    py_spy("exit 1")
    os.mkfifo(recorder.asking(place.heartbeat))
    reader = os.open(recorder.asking(place.heartbeat), os.O_RDONLY | os.O_NONBLOCK)
    sent = []
    monkeypatch.setattr(processes, "send", lambda _, signum: sent.append((signum, clock.now)))

    def pass_time(now: float) -> None:
        if not sent:
            time.sleep(0.02)  # py-spy has failed long before the answer comes
        if now > 0.5:
            if written:
                recorder.answered_stacks(place.heartbeat).write_text(written)
            recorder.answer(place.heartbeat).write_text('{"entries": []}')

    clock = StoppedClock(on_sleep=pass_time)
    recorder.answered_stacks(place.heartbeat).write_text(THREADS.replace("step", "earlier"))
    folder = Looker(attempts, clock).take_look("asked")
    os.close(reader)
    if taken_by:
        stacks = read_stacks(folder, 0)
        assert (stacks.taken_by, stacks.main_frames[0].function) == (taken_by, function)
        assert not sent
    else:
        assert sent == [(STACKS_SIGNAL, pytest.approx(0.52, abs=0.021))]


def test_a_worker_s_thread_writes_what_each_thread_does(tmp_path):
    def loads():
        loading.set()
        done.wait()

    def step():
        recorder._write_stacks(tmp_path / "threads")

    loading, done = threading.Event(), threading.Event()
    loader = threading.Thread(target=loads, name="loader")
    loader.start()
    loading.wait()
    step()
    done.set()
    loader.join()
    main, *others = parse_py_spy(json.loads((tmp_path / "threads").read_text()), 0)
    (of_loader,) = (thread for thread in others if thread.name == "loader")
    line = loads.__code__.co_firstlineno + 2
    assert Frame(function="loads", file=__file__, line=line) in of_loader.frames
    assert (main.is_main, main.frames[0].function) == (True, "step")


@pytest.mark.parametrize(
    ("answers", "missing"),
    [
        ('{"entries": []}', ""),
        ("[no JSON", ""),
        ('{"missing": "no recorder"}', "no recorder"),
        ("ends", NO_ANSWER),
        ("", NO_ANSWER),
        (None, "the script has made no process group with torch.distributed"),
    ],
)
def test_a_worker_s_recorder_is_asked_for_its_collectives(answers, missing, attempts, worker):
    (place,) = attempts.workers
    asking = recorder.asking(place.heartbeat)
    if answers is not None:
        os.mkfifo(asking)
    reader = os.open(asking, os.O_RDONLY | os.O_NONBLOCK) if answers else None

    def answer(_: float) -> None:
        assert not place.exit_file.exists(), "it waits for a worker that has ended"
        if answers == "ends":
            place.exit_file.touch()
        else:
            recorder.answer(place.heartbeat).write_text(answers)

    folder = Looker(attempts, StoppedClock(on_sleep=answer)).take_look("loss", stacks=False)
    assert read_look(folder).ranks[0].no_collectives == missing
    written = folder / "rank-0.collectives.json"
    assert written.exists() is (not missing)
    if not missing:
        assert written.read_text() == answers
    assert not recorder.answer(place.heartbeat).exists()
    if reader is not None:
        os.close(reader)


def test_of_a_stopped_worker_py_spy_alone_can_tell_and_has_the_whole_limit(
    attempts, worker, py_spy
):
    worker.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(worker.pid))
    py_spy("exec sleep 60")
    clock = StoppedClock(now=time.monotonic() + 100.0)
    folder = Looker(attempts, clock).take_look("asked", id="mine")
    assert folder == look_dir(attempts.node_dir, "mine")
    seen = read_look(folder)
    assert (seen.id, seen.why, seen.attempt, seen.native) == ("mine", "asked", 0, False)
    (one,) = seen.ranks
    assert (one.rank, one.pid, one.state, one.steps) == (0, worker.pid, "T", 1)
    assert one.cpu_share == 0.0
    assert one.silent_s == pytest.approx(100.0, abs=60.0)
    assert one.no_collectives == "a signal has stopped the process"
    assert one.no_stacks.startswith("a signal has stopped it")
    assert one.no_stacks.endswith("; py-spy took too long")


def test_who_asks_gets_a_look_and_old_ones_go(attempts, py_spy):
    clock = StoppedClock()
    looker = Looker(attempts, clock)
    looker.answer()
    assert looker.take_look("hang") == look_dir(attempts.node_dir, "hang-0.000")
    request = attempts.node_dir / LOOK_REQUEST
    asked = [{"id": f"n-{number}", "native": number == 7} for number in range(8)]
    for one in (*asked, {"id": "s", "why": "stop"}, {"id": "../escapes"}):
        clock.now += 1.0
        request.write_text(json.dumps(one))
        looker.answer()
        assert not request.exists()
    seen = [(one.id, one.why, one.native) for one in read_looks(attempts.node_dir)]
    # A look before a stop is none that has to make room.
    kept = [(f"n-{number}", "asked", number == 7) for number in range(4, 8)]
    assert seen == [("hang-0.000", "hang", False), *kept, ("s", "stop", False)]


def test_a_profile_does_not_hold_the_thread_up_that_looks_for_hangs(attempts, worker, py_spy):
    py_spy("exec sleep 60")
    (attempts.node_dir / LOOK_REQUEST).write_text('{"id": "p", "steps": 3, "seconds": 0.1}')
    (attempts.node_dir / protocol.STOP_READY_FILE).touch()
    Looker(attempts, SystemClock()).answer()
    wait_until(lambda: read_look(look_dir(attempts.node_dir, "p")))
    assert read_look(look_dir(attempts.node_dir, "p")).why == "profile"


def test_a_look_that_cannot_be_written_is_none_and_holds_up_no_other(attempts):
    looker, looks = Looker(attempts, StoppedClock()), attempts.node_dir / "looks"
    looks.parent.mkdir(parents=True)
    looks.touch()
    assert looker.take_look("hang") is None
    looks.unlink()
    assert looker.take_look("hang")


@pytest.mark.parametrize("written", ["", "step 7\n"], ids=["nothing", "a line"])
def test_a_look_says_how_long_ago_a_worker_wrote_its_last_line(attempts, worker, written):
    clock = SystemClock()
    place = attempts.workers[0]
    (place.folder / "stderr").write_text(written)
    if written:
        os.utime(place.folder / "stderr", (clock.wall() - 100.0,) * 2)
    Looker(attempts, clock).take_look("asked", stacks=False)
    ((seen,),) = (one.ranks for one in read_looks(attempts.node_dir))
    assert 100.0 <= seen.wrote_s < 700.0 if written else seen.wrote_s == -1.0
