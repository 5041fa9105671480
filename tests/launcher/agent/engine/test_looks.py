"""Looks at real workers that are stuck in each of the ways that people meet."""

from __future__ import annotations

import json

import pytest

from launcher.agent.atomic_write import write_atomically
from launcher.contract import look
from launcher.contract.look import Look, RankLook, RankStacks
from tests.launcher.agent.place import Place
from tests.waiting import wait_until

STUCK = """
import ctypes, os, signal, threading
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
group = dist.new_group([0, 1], group_desc="pair")
tensor = torch.ones(1000)
dist.all_reduce(tensor)
open(f"ready-{rank}", "w").close()
def waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
def holds_the_interpreter():
    mutex = ctypes.create_string_buffer(64)
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)
def is_in_a_collective():
    dist.all_reduce(tensor, group=group)
[is_in_a_collective, waits_for_a_lock, holds_the_interpreter, is_stopped][rank]()
"""
FUNCTIONS = ("is_in_a_collective", "waits_for_a_lock", "holds_the_interpreter", "is_stopped")
FORBIDDEN = "#!/bin/sh\necho 'Error: permission denied (os error 13)' >&2\nexit 1\n"


def ask(place: Place, id: str, *, native: bool = False) -> Look:
    """Asks as the launcher does, and waits for the look."""
    request = json.dumps({"id": id, "native": native})
    write_atomically(place.node_dir / look.LOOK_REQUEST, request)
    folder = look.look_dir(place.node_dir, id)
    wait_until(lambda: (folder / look.LOOK_FILE).exists(), limit_s=5)
    found = look.read_look(folder)
    assert found is not None
    return found


def stacks_of(place: Place, id: str, rank: int) -> RankStacks:
    found = look.read_stacks(look.look_dir(place.node_dir, id), rank)
    assert found is not None
    return found


def start_stuck(place: Place) -> None:
    place.write(STUCK)
    place.plan(nproc=len(FUNCTIONS))
    place.start()
    ready = [place.folder / f"ready-{rank}" for rank in range(len(FUNCTIONS))]
    wait_until(lambda: all(path.exists() for path in ready))


def forbid_py_spy(place: Place) -> None:
    place.write(FORBIDDEN, "bin/py-spy").chmod(0o755)
    place.env["PATH"] = f"{place.folder}/bin:{place.env['PATH']}"


def end_stuck(place: Place) -> None:
    """A worker that is stopped, and one that holds the interpreter, would take the whole grace."""
    for process in place.processes():
        process.kill()


def check_recorders(place: Place, ranks: dict[int, RankLook]) -> None:
    folder = look.look_dir(place.node_dir, "second")
    last = look.read_collectives(folder, 0)["entries"][-1]
    assert (last["profiling_name"], last["retired"]) == ("gloo:all_reduce", False)
    assert look.read_collectives(folder, 1)["entries"][-1]["retired"]
    assert "holds Python's lock" in ranks[2].no_collectives
    assert "stopped" in ranks[3].no_collectives


def test_a_look_tells_of_each_worker_however_it_is_stuck(place: Place) -> None:
    start_stuck(place)
    wait_until(lambda: "T" in [one.state for one in ask(place, "first").ranks])
    seen = {one.rank: one for one in ask(place, "second").ranks}
    assert sorted(seen) == [0, 1, 2, 3]
    for rank, function in enumerate(FUNCTIONS):
        stacks = stacks_of(place, "second", rank)
        assert stacks.taken_by == "py-spy"
        assert stacks.threads[0].is_main
        assert function in [frame.function for frame in stacks.threads[0].frames]
        assert not [f for t in stacks.threads for f in t.frames if "agent.pyz" in f.file]
    check_recorders(place, seen)
    end_stuck(place)


@pytest.mark.slow
def test_without_py_spy_a_worker_s_own_faulthandler_tells(place: Place) -> None:
    forbid_py_spy(place)
    start_stuck(place)
    wait_until(lambda: "T" in [one.state for one in ask(place, "first").ranks])
    seen = {one.rank: one for one in ask(place, "second").ranks}
    for rank in (0, 1, 2):
        stacks = stacks_of(place, "second", rank)
        assert stacks.taken_by == "faulthandler"
        assert "py-spy may not trace here" in stacks.missing
        assert FUNCTIONS[rank] in [frame.function for frame in stacks.threads[0].frames]
    assert "a signal has stopped it" in seen[3].no_stacks
    assert seen[3].state == "T"
    end_stuck(place)
