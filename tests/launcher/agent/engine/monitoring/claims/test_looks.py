"""Looks at real workers that are stuck in each of the ways that people meet."""

import contextlib
import json
from pathlib import Path

import psutil

from launcher.agent.atomic_write import write_atomically
from launcher.contract.reports import look
from launcher.contract.reports.look import Look, RankLook, RankStacks
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


def ask(place: Place, id: str, *, native: bool = False) -> Look:
    """Asks as the launcher does, and waits for the look."""
    request = json.dumps({"id": id, "native": native})
    write_atomically(place.node_dir / look.LOOK_REQUEST, request)
    folder = look.look_dir(place.node_dir, id)
    wait_until(lambda: (folder / look.LOOK_FILE).exists())
    found = look.read_look(folder)
    assert found is not None
    return found


def stacks_of(place: Place, id: str, rank: int) -> RankStacks:
    found = look.read_stacks(look.look_dir(place.node_dir, id), rank)
    assert found is not None
    return found


def ask_until(place: Place, *taken_by: str) -> tuple[str, dict[int, RankLook]]:
    """Asks until all four are stuck and their stacks were taken so; a busy machine takes several.

    Returns the id of the look and what it tells of each rank. Only py-spy can have the stacks of
    rank 3, which a signal has stopped.
    """
    for number in range(100):
        id = f"look-{number}"
        ranks = {one.rank: one for one in ask(place, id).ranks}
        folder = look.look_dir(place.node_dir, id)
        stacks = [look.read_stacks(folder, rank) for rank in range(len(taken_by))]
        taken = [one.taken_by if one else "" for one in stacks]
        if "T" in [one.state for one in ranks.values()] and taken == [*taken_by]:
            assert sorted(ranks) == [0, 1, 2, 3]
            return id, ranks
    raise AssertionError(ranks)


def start_stuck(place: Place) -> None:
    place.write(STUCK)
    place.plan(nproc=len(FUNCTIONS))
    place.start()
    ready = [place.folder / f"ready-{rank}" for rank in range(len(FUNCTIONS))]
    wait_until(lambda: all(path.exists() for path in ready))


def end_stuck(place: Place) -> None:
    """A worker that is stopped, and one that holds the interpreter, would take the whole grace."""
    for process in place.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # a killed guard takes its worker along
            process.kill()


def check_recorders(folder: Path, ranks: dict[int, RankLook]) -> None:
    last = look.read_collectives(folder, 0)["entries"][-1]
    assert (last["profiling_name"], last["retired"]) == ("gloo:all_reduce", False)
    assert look.read_collectives(folder, 1)["entries"][-1]["retired"]
    assert "holds Python's lock" in ranks[2].no_collectives
    assert "stopped" in ranks[3].no_collectives


def test_a_look_tells_of_each_worker_however_it_is_stuck(place):
    start_stuck(place)
    id, seen = ask_until(place, *["py-spy"] * 4)
    for rank, function in enumerate(FUNCTIONS):
        stacks = stacks_of(place, id, rank)
        assert stacks.taken_by == "py-spy"
        assert stacks.threads[0].is_main
        assert function in [frame.function for frame in stacks.threads[0].frames]
        assert not [f for t in stacks.threads for f in t.frames if "agent.pyz" in f.file]
    check_recorders(look.look_dir(place.node_dir, id), seen)
    end_stuck(place)
