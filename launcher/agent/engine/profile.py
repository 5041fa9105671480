"""Takes a profile of this node's workers: by the training itself, or by py-spy from outside."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.agent.engine.attempts import Attempts
from launcher.agent.engine.stacks import record
from launcher.contract import look, protocol
from launcher.contract.clock import Clock
from launcher.contract.look import Look, LookRequest, RankLook
from launcher.contract.records import dump_record
from launcher.contract.waits import wait_until

NO_TRAINING = "no training with fabric_train answers here yet (it does once its steps have begun)"


def take_profile(attempts: Attempts, request: LookRequest, clock: Clock) -> None:
    """Writes a look with each rank's profile, or why it has none; blocks for the request's time."""
    at = clock.wall()
    folder = look.look_dir(attempts.node_dir, request.id)
    pids = {rank: beat.pid for rank, beat in attempts.beats().items()}
    # Such as a full disk: no profile is worth a failure.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        answers = (attempts.node_dir / protocol.STOP_READY_FILE).exists()
        write_profiles = _ask_training if answers else _record
        missing = write_profiles(attempts.node_dir, folder, pids, request, clock)
        ranks = tuple(
            RankLook(rank=rank, pid=pid, no_stacks=missing.get(rank, ""))
            for rank, pid in pids.items()
        )
        result = Look(id=request.id, at=at, why="profile", attempt=attempts.number, ranks=ranks)
        write_atomically(folder / look.LOOK_FILE, dump_record(result))


def _ask_training(
    node_dir: Path, folder: Path, pids: Mapping[int, int], request: LookRequest, clock: Clock
) -> dict[int, str]:
    """Asks the training for traces; returns why ranks have none."""
    request_file = node_dir / protocol.PROFILE_REQUEST
    write_atomically(request_file, json.dumps({"id": request.id, "steps": request.steps}))
    traces = {rank: folder / protocol.TRACE.format(rank=rank) for rank in pids}
    wait_until(lambda: all(path.exists() for path in traces.values()), request.seconds, clock=clock)
    request_file.unlink(missing_ok=True)
    why = f"it has not made {request.steps} steps in {request.seconds:g} s"
    return {rank: why for rank, path in traces.items() if not path.exists()}


def _record(
    node_dir: Path, folder: Path, pids: Mapping[int, int], request: LookRequest, clock: Clock
) -> dict[int, str]:
    """Has py-spy record the ranks; returns why ranks have neither a trace nor a recording."""
    paths = {rank: folder / look.SPEEDSCOPE.format(rank=rank) for rank in pids}
    missing = record(pids, paths, request.seconds)
    return {rank: f"{NO_TRAINING}; {why}" for rank, why in missing.items()}
