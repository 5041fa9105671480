"""The node's first process: signals, orphans, exit codes; real processes throughout."""

import contextlib
import json
import signal
import socket
import time
from dataclasses import replace

import psutil
import pytest

from launcher.contract import protocol
from launcher.contract.node_plan import Static, parse_task
from tests.launcher.agent.node.claims.test_supervisor import STARTS
from tests.launcher.agent.place import LIMIT_S, free_port
from tests.waiting import wait_until


@pytest.mark.parametrize("start", STARTS)
def test_sigterm_before_the_rendezvous_is_acted_on_and_says_preempted(place, start):
    place.write("print('never')")
    place.plan(min_nodes=2, max_nodes=2, start=start)
    process = place.start()
    wait_until(lambda: "rendezvous-began" in str(place.events_or_none()))
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 143
    assert place.outcome()["cause"] == "preempted"
    assert not place.rank().exists()


def test_a_static_group_that_waits_for_its_other_node_ends_before_its_grace(place):
    place.write("print('never')")
    port = free_port()
    path = place.plan(min_nodes=2, max_nodes=2, stop_grace_s=2 * LIMIT_S)
    task = parse_task(path.read_text())
    static = Static(master_addr="127.0.0.1", master_port=port, id="digits")
    path.write_text(replace(task, node=replace(task.node, rendezvous=static)).to_json())
    process = place.start()

    def listens() -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 143
    assert place.outcome()["cause"] == "preempted"


def test_sigterm_while_torch_is_still_being_imported_says_preempted(place):
    place.write("print('never')")
    place.plan()
    process = place.start()
    wait_until(lambda: place.events_or_none() and psutil.Process(process.pid).children())
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 143


@pytest.mark.parametrize(
    ("signum", "code", "reason"),
    [
        (signal.SIGTERM, 143, "preempted"),
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGHUP, 130, "interrupted"),
    ],
)
def test_scripts_that_know_nothing_simply_get_sigterm(place, signum, code, reason):
    place.write(
        "import signal, sys, time\n"
        "def leave(*_): print('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('up')\n"
        "while True: time.sleep(1)\n"
    )
    place.plan()
    process = place.start()
    wait_until(lambda: "up" in place.stdout())
    process.send_signal(signum)
    assert process.wait(LIMIT_S) == code
    assert place.stdout() == "up\nsaved\n"
    request = json.loads((place.node_dir / protocol.STOP_REQUEST_FILE).read_text())
    assert request["reason"] == reason
    assert request["deadline"] - request["at"] == pytest.approx(30)


def test_a_third_signal_ends_everything_at_once(place):
    place.write(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up')\n"
        "while True: time.sleep(1)\n"
    )
    place.plan(stop_grace_s=600)
    process = place.start()
    wait_until(lambda: "up" in place.stdout())
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)  # equal signals that are pending count as one
    assert process.wait(LIMIT_S) == 143


@pytest.mark.parametrize("start", STARTS)
def test_usr1_to_all_processes_of_a_node_reaches_the_scripts_alone(place, start):
    """As by ``scancel --signal=USR1``; they may get it from several others."""
    place.write(
        "import signal, time\n"
        "came = []\n"
        "signal.signal(signal.SIGUSR1, lambda *_: came.append(1)); print('up')\n"
        "while not came: time.sleep(0.05)\n"
        "time.sleep(1)\n"
    )
    place.plan(nproc=2, start=start)
    process = place.start()
    wait_until(lambda: "up" in place.stdout() and "up" in place.stdout(1))
    for each in [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGUSR1)
    assert process.wait(LIMIT_S) == 0, place.console()


def test_a_folder_that_is_too_long_for_a_socket_s_name_only_makes_workers_start_fresh(
    place, tmp_path
):
    scratch = tmp_path / ("long" * 20)
    scratch.mkdir()
    place.env["TMPDIR"] = str(scratch)
    place.write("print('trained')")
    place.plan(start="fork")
    assert place.run() == 0, place.console()
    assert "path too long); starting fresh interpreters" in place.console()


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 0}', "not json"])
def test_a_plan_that_cannot_be_read_is_bad_input(place, text):
    (place.folder / "node-plan-0.json").write_text(text)
    assert place.run() == 2
    assert "node plan cannot be read" in place.console()
