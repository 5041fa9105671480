"""Workers' stacks by either way: what each wrote, and why there are none."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.agent.engine.monitoring import stacks
from launcher.agent.engine.monitoring.look import take_profile
from launcher.agent.engine.monitoring.stacks import (
    Faulthandler,
    PySpy,
    explain_py_spy,
    parse_faulthandler,
    parse_py_spy,
    record,
)
from launcher.contract import protocol
from launcher.contract.process_stat import is_stopped
from launcher.contract.reports import look
from launcher.contract.reports.look import Frame, LookRequest, RankStacks, ThreadStack
from tests.launcher.agent.engine.conftest import ANSWERS
from tests.waiting import StoppedClock, wait_until

OWN = f"{Path(stacks.__file__).parents[3]}/agent"
MAIN = ThreadStack(
    name="MainThread",
    is_main=True,
    frames=(Frame(function="step", file="/t.py", line=7), Frame(function="c", file="/l.so")),
)
LOADS = ThreadStack(name="loads", frames=(Frame(function="read", file="/d.py", line=3),))
SPIED = json.dumps(
    [
        {"thread_name": name, "os_thread_id": id, "frames": [
            {"name": function, "filename": file, "line": line} for function, file, line in frames
        ]}
        for name, id, frames in [
            (None, 2, [("answer", f"{OWN}/worker/recorder.py", 1)]),
            ("loads", 3, [("read", "/d.py", 3)]),
            (None, 1, [("step", "/t.py", 7), ("hook", "launcher/agent/x.py", 2), ("c", "/l.so", 0),
                       ("run", f"{OWN}/worker/start.py", 5), ("main", "/guard.py", 1)]),
        ]
    ]
)  # fmt: skip
WROTE = f"""
  File "/of-nobody.py", line 1 in f
Thread 0x00007f10 [loads] (most recent call first):
  File "/d.py", line 3 in read
  File "<frozen runpy>", line 8 in run
Thread 0x00007f11 (most recent call first):
  File "{OWN}/worker/recorder.py", line 1 in answer
Current thread 0x00007f12 (most recent call first):
  File "/t.py", line 7 in step
  Binary file "/skipped.so", at f+0x1
  File "/l.so", line ??? in c
  File "{OWN}/worker/start.py", line 5 in run
  File "/guard.py", line 1 in main
"""


def test_the_threads_of_the_script_are_told_alike_by_both_ways():
    assert parse_faulthandler(WROTE) == (MAIN, LOADS)
    main, loads = parse_py_spy(json.loads(SPIED), 1)
    assert (main.is_main, main.frames, loads) == (True, MAIN.frames, LOADS)
    assert parse_faulthandler("no thread\n") == ()
    bare = [{"thread_name": "MainThread", "os_thread_id": 9, "frames": []}]
    assert parse_py_spy(bare, 1) == (ThreadStack(name="MainThread", is_main=True),)


@pytest.mark.parametrize(
    ("said", "rights", "why"),
    [
        ("Error: Permission denied (13)", "0000000000080000",
         "py-spy is not allowed to trace this process: it needs the same user, or a security "
         "profile that allows it"),
        ("Operation not permitted", "00000000fff7ffff",
         "py-spy is not allowed to trace this process: it needs capability SYS_PTRACE"),
        ("permission denied", "?",
         "py-spy is not allowed to trace this process: it needs the rights of pid {pid} "
         "(CapEff)"),
        ("\n Error: no Python \nmore", "0", "py-spy failed: Error: no Python"),
        ("x" * 300, "0", "py-spy failed: " + "x" * 200),
        (" \n", "0", "py-spy failed: it said nothing"),
    ],
)  # fmt: skip
def test_py_spy_s_failure_is_told_with_the_right_that_it_lacks(said, rights, why, monkeypatch):
    monkeypatch.setattr(stacks, "_status", lambda pid: {"CapEff": rights})
    assert explain_py_spy(said, os.getpid()) == why.format(pid=os.getpid())
    assert explain_py_spy(said, 2**22 + 1) == "the process has ended"


@pytest.mark.parametrize(
    ("program", "native", "missing"),
    [
        (f"echo '{SPIED}'", False, ""),
        (f"echo '{SPIED}'", True, ""),
        ("echo '[]'", False, "py-spy failed: it said nothing"),
        ("echo Error: >&2; exit 1", False, "py-spy failed: Error:"),
        ("exec sleep 60", False, "py-spy took too long"),
        ("exec sleep 60", True, "py-spy took too long"),
    ],
)
def test_what_py_spy_found_is_read_and_one_that_is_slow_is_ended(program, native, missing, py_spy):
    asked = py_spy(program)
    with subprocess.Popen(("sleep", "60")) as process:
        spied = PySpy({4: process.pid}, native=native)
        ends = not program.startswith("exec")
        wait_until(spied.are_done if ends else asked.exists)
        assert spied.are_done() is ends
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
        found = spied.read_stacks(4)
        assert (found.rank, found.pid, found.missing) == (4, process.pid, missing)
        assert (found.taken_by, len(found.threads)) == (("", 0) if missing else ("py-spy", 2))
        wait_until(spied.are_done)
        # Only one that py-spy may have paused is continued.
        is_continued = native and not ends
        wait_until(lambda: is_stopped(process.pid) is not is_continued)
        assert is_stopped(process.pid) is not is_continued
        PySpy({4: process.pid}, native=True)
        wait_until(lambda: len(asked.read_text().splitlines()) == 2)
        process.kill()
    how = [("--native" if of else "--nonblocking") for of in (native, is_continued)]
    dump = "dump --json --full-filenames {} --pid " + str(process.pid)
    assert asked.read_text().splitlines() == [dump.format(one) for one in how]


def test_without_py_spy_it_is_told_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert PySpy({0: 1}, native=False).read_stacks(0).missing == stacks.NOT_INSTALLED
    assert record({0: 1}, {}, 1.0) == {0: stacks.NOT_INSTALLED}
    (tmp_path / "py-spy").touch()
    assert stacks.find_py_spy() == f"{tmp_path}/py-spy", "it stands beside Python"


@pytest.mark.parametrize(
    ("program", "seconds", "why"),
    [
        ("touch $8", 2.6, ""),
        ("echo no file >&2", 0.2, "py-spy failed: no file"),
        ("echo slow >&2; exec sleep 60", 0.2, "py-spy failed: slow"),
    ],
)
def test_a_script_that_asks_nobody_is_recorded_by_py_spy(
    program, seconds, why, py_spy, monkeypatch, attempts, worker
):
    asked = py_spy(program)
    monkeypatch.setattr(stacks, "WRITE_LIMIT_S", 2.0)
    take_profile(attempts, LookRequest(id="p", steps=2, seconds=seconds), StoppedClock())
    folder = look.look_dir(attempts.node_dir, "p")
    (one,) = look.read_look(folder).ranks
    told = "no training with fabric_train answers here yet (it does once its steps have begun); "
    assert (one.pid, one.no_stacks) == (worker.pid, told + why if why else "")
    assert asked.read_text() == (
        f"record --format speedscope --nonblocking --duration {3 if seconds > 1 else 1} "
        f"--output {folder}/rank-0.speedscope.json --pid {worker.pid}\n"
    )


@pytest.mark.parametrize(("traced", "took_s"), [((0,), 3.0), ((0, 1), 0.1)])
def test_a_training_is_asked_for_its_profile(traced, took_s, attempts, start_worker):
    for place in attempts.begin({0: 0, 1: 1}):
        start_worker(place, "")
    (attempts.node_dir / protocol.STOP_READY_FILE).touch()
    request, folder = attempts.node_dir / protocol.PROFILE_REQUEST, attempts.node_dir / "looks/p"
    asked = []

    def trace(_: float) -> None:
        asked.append(json.loads(request.read_text()))
        for rank in traced:
            (folder / protocol.TRACE.format(rank=rank)).touch()

    clock = StoppedClock(on_sleep=trace)
    take_profile(attempts, LookRequest(id="p", steps=2, seconds=3.0), clock)
    late = "it has not made 2 steps in 3 s"
    ranks = [(one.rank, one.no_stacks) for one in look.read_look(folder).ranks]
    assert ranks == [(0, ""), (1, "" if 1 in traced else late)]
    assert clock.now == pytest.approx(took_s, abs=0.11)
    assert asked[0] == {"id": "p", "steps": 2}
    assert not request.exists()


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (ANSWERS, ""),
        ("", "it has no handler for the stacks signal, as happens after exec"),
        (f"{ANSWERS}; stacks.close()",
         "its script has closed the file for its stacks"),
        ("signal.signal(int(sys.argv[3]), lambda *_: None)",
         "it did not answer the signal for its stacks"),
        ("stopped", "a signal has stopped it (kill -CONT continues it)"),
        ("ended", "it cannot be seen: "),
    ],
)  # fmt: skip
def test_a_worker_s_own_faulthandler_is_asked_where_that_does_no_harm(
    before, why, attempts, start_worker
):
    (place,) = attempts.begin({0: 0})
    process = start_worker(place, before if "(" in before else "")
    if before == "stopped":
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid))
    pid = 2**22 + 1 if before == "ended" else process.pid
    asked = Faulthandler(RankStacks(rank=2, pid=pid, missing="no py-spy"), place.stacks)
    if not why:
        wait_until(asked.is_done)
    assert asked.is_done() is not why.startswith("it did not answer")
    found = asked.read_stacks()
    assert (found.rank, found.pid) == (2, pid)
    if why:
        assert (found.taken_by, found.threads) == ("", ())
        assert found.missing.startswith(why)
        assert found.missing.endswith("; no py-spy")
    else:
        assert (found.taken_by, found.missing) == ("faulthandler", "no py-spy")
        assert found.threads[0].frames[0].function == "hangs"
    assert process.poll() is None
