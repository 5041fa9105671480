"""``python -m train`` that meets the faults of its environment, one in each start.

FAULTS: ``KIND:RANK:PHASE`` by spaces; each is met once, in this order. RANK is ``first`` or
``last``. In the phases of a save only rank 0 works: it waits there, and the last rank meets its
fault while it does.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import train.__main__ as program
import train.loop
from fabric_train.checkpointing import checkpoint, commit
from fabric_train.communication import reduction

FOLDER = Path(os.environ["RUN_DIR"]) / "faults"
SAVE_PHASES = {
    "writing": (commit, "write_tensors"),
    "unproven": (commit, "describe_files"),  # between the shards and the manifest
    "unnamed": (checkpoint.CheckpointStore, "_point_latest_at"),  # renamed, not latest
}
WAIT_S = 30.0


def main() -> None:
    if fault := next_fault():
        number, kind, who, phase = fault
        rank, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
        mine = rank == (0 if who == "first" else last)
        arm(Fault(number, kind, mine), phase, rank, mine)
    program.exit_on_sigterm(Path(os.environ["LAUNCHER_NODE_DIR"]))
    sys.exit(program.main(sys.argv[1:]))


def next_fault() -> tuple[int, str, str, str] | None:
    FOLDER.mkdir(exist_ok=True)
    for number, text in enumerate(os.environ.get("FAULTS", "").split()):
        if not (FOLDER / f"{number}.met").exists():
            kind, who, phase = text.split(":")
            return number, kind, who, phase
    return None


class Fault:
    """Strikes once, in the process that it is meant for."""

    def __init__(self, number: int, kind: str, mine: bool) -> None:
        self.kind, self._mine = kind, mine
        self.met, self.near = FOLDER / f"{number}.met", FOLDER / f"{number}.near"

    def strike(self) -> None:
        if not self._mine or self.met.exists():
            return
        self.met.touch()
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "term":
            os.kill(os.getpid(), signal.SIGTERM)
            sleep_for_ever()
        elif self.kind == "hang":
            sleep_for_ever()
        raise RuntimeError("a fault of the test")


def arm(fault: Fault, phase: str, rank: int, mine: bool) -> None:
    if phase == "forward":
        before(train.loop, "cross_entropy", fault.strike, calls=40)
    elif phase == "collective":
        arm_collective(fault, mine)
    else:
        owner, name = SAVE_PHASES[phase]
        if rank == 0:
            before(owner, name, lambda: in_save(fault, mine), calls=2)
        elif mine:
            before(train.loop, "cross_entropy", lambda: fault.near.exists() and fault.strike())


def arm_collective(fault: Fault, mine: bool) -> None:
    """The others come late, so that the fault strikes while its process waits for them."""

    def enter() -> None:
        if fault.met.exists():
            return
        if not mine:
            time.sleep(1.0)
        elif fault.kind in ("kill", "term"):
            threading.Timer(0.3, fault.strike).start()
        else:
            fault.strike()

    before(reduction.ExactReduction, "_exchange", enter, calls=4)


def in_save(fault: Fault, mine: bool) -> None:
    if mine:
        fault.strike()
        return
    fault.near.touch()
    deadline = time.monotonic() + WAIT_S
    while not fault.met.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)


def before(owner: Any, name: str, act: Callable[[], object], calls: int = 1) -> None:
    """Has ``act`` called before the function, from its ``calls``-th call on."""
    real = getattr(owner, name)
    count = 0

    def wrapped(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count >= calls:
            act()
        return real(*arguments, **options)

    setattr(owner, name, wrapped)


def sleep_for_ever() -> NoReturn:
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
