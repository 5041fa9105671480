"""Starts the keeper of a detached run's container again after a reboot of the host.

Docker's restart policy starts the container, and its agent joins the others again. The next session
on the host restores its keeper and lease.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.keeper_record import RECORD, read_record, write_record
from launcher.contract.process_stat import start_of
from launcher.targets.hosts.program import commands, keeper, processes
from launcher.targets.hosts.program.leases import HeldError, LeaseBook
from launcher.targets.hosts.program.messages import KeeperSpec

PATTERN = f"runs/*/{protocol.NODES_DIR}/[0-9]*/[0-9]*/{keeper.SPEC}"
TAKEN_CODE = 137


def revive(state_dir: Path, program: str) -> None:
    """Restores the keepers that are gone; ``program`` starts a keeper. Does not wait."""
    for path in state_dir.glob(PATTERN):
        if keeper.read_state(path.parent).state == "pending":
            with suppress(OSError, ValueError), path.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another session may have restored it before this one had the lock.
                if keeper.read_state(path.parent).state == "pending":
                    _revive(KeeperSpec.from_json(json.load(file)), program)


def _revive(spec: KeeperSpec, program: str) -> None:
    folder = Path(spec.node_dir)
    found = keeper.inspect(spec.container)
    if found is None:
        _wait_for_engine(folder)
    elif found.is_running:
        _keep_again(spec, program)
    elif not found.is_there:
        _mark(folder, gone=True)


def _wait_for_engine(folder: Path) -> None:
    record = read_record(folder)
    since = record.setdefault("waits_since", time.time())
    _mark(folder, waits_since=since, gone=time.time() - since > keeper.BACK_LIMIT_S)


def _mark(folder: Path, **told: object) -> None:
    write_record(folder, {**read_record(folder), **told})


def _keep_again(spec: KeeperSpec, program: str) -> None:
    try:
        if spec.lease is not None:
            book = LeaseBook(spec.lease_dir)
            book.take(spec.lease, keeper.DETACHED_TTL_S, spec.slots_limit)
    except HeldError as error:
        keeper.remove_container(spec.container)
        taker = error.leases[0].run_id
        detail = f"while its host was away, {taker} took what it had there"
        _mark(Path(spec.node_dir), exit_code=TAKEN_CODE, detail=detail)
        return
    start(keeper.attached(spec), program)


def start(spec: KeeperSpec, program: str) -> None:
    """Starts a node's keeper, and records its process."""
    env = {
        **os.environ,
        protocol.RUN_ID: spec.run_id,
        protocol.NODE_INDEX: str(spec.node_index),
        processes.KEEPER: "1",
    }
    folder = Path(spec.node_dir)
    for stale in (RECORD, keeper.GRACE_FILE):
        (folder / stale).unlink(missing_ok=True)
    if spec.comes_back:
        keeper.write_spec(spec)
    argv = (sys.executable, "-S", program, "keep")
    pid = commands.start_keeper(argv, env, spec.to_json().encode(), folder / "keeper.log")
    # The keeper writes this too, but later: until then the node would count as lost.
    write_record(folder, {"pid": pid, "start": start_of(pid)})
