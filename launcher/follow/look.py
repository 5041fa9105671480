"""Asks the agents of a run for a look at their workers, through files in the run folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.clock import Clock
from launcher.contract.records import dump_record
from launcher.contract.reports import look
from launcher.contract.reports.look import LookRequest
from launcher.contract.waits import SOON_S
from launcher.runs.folder import RunFolder, write_atomically

_FILE = re.compile(r"[a-z0-9.-]{1,80}\.json")
NOT_STARTED = "it has not started its workers yet"
NO_ANSWER = "its agent does not answer"


def present_nodes(run: RunFolder) -> dict[int, Path]:
    """By node index, the folder of each node's newest incarnation, unless that has ended."""
    newest = {index: run.node_dir(index, number) for index, number in run.incarnations()}
    return {
        index: folder
        for index, folder in newest.items()
        if not (folder / protocol.OUTCOME_FILE).exists()
    }


def ask_nodes(run: RunFolder, request: LookRequest, limit_s: float, clock: Clock) -> dict[int, str]:
    """Has each node look at its workers; waits until all have, or for ``limit_s`` seconds.

    Returns, by node index, why a node has not.
    """
    end = clock.monotonic() + limit_s
    nodes = present_nodes(run)
    failed: dict[int, str] = {}
    for index, folder in nodes.items():
        try:
            write_atomically(folder / look.LOOK_REQUEST, dump_record(request))
        except OSError as error:
            failed[index] = f"the request cannot be written: {error.strerror}: {folder}"
    pending = {index: folder for index, folder in nodes.items() if index not in failed}
    while pending and clock.monotonic() < end:
        clock.sleep(SOON_S)
        pending = {
            index: folder for index, folder in pending.items() if not has_look(folder, request)
        }
    return failed | _explain(pending)


def has_look(node_dir: Path, request: LookRequest) -> bool:
    """Whether the look is finished."""
    try:
        # List the folder: clients of network file systems cache for long that a file is missing.
        return look.LOOK_FILE in os.listdir(look.look_dir(node_dir, request.id))
    except OSError:
        return False


def keep_look(run: RunFolder, index: int, id: str, files: Mapping[str, str]) -> str:
    """Writes a look that came from elsewhere into the run folder. Returns why not, or "".

    ``files`` maps the names of the look's files to their texts.
    """
    if look.LOOK_FILE not in files:
        return NO_ANSWER
    numbers = [number for node, number in run.incarnations() if node == index]
    folder = look.look_dir(run.node_dir(index, max(numbers, default=0)), id)
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(files, key=look.LOOK_FILE.__eq__):  # the last one says that all are there
        if _FILE.fullmatch(name):
            write_atomically(folder / name, files[name])
    return ""


def _explain(silent: Mapping[int, Path]) -> dict[int, str]:
    """Why nodes did not answer. Withdraws the requests: nobody needs a later answer."""
    reasons = {}
    for index, folder in silent.items():
        (folder / look.LOOK_REQUEST).unlink(missing_ok=True)
        has_begun = any(folder.glob("attempt-*/*"))
        reasons[index] = NO_ANSWER if has_begun else NOT_STARTED
    return reasons
