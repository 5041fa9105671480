"""Starts keepers, and finds the processes of a run on this host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.contract import protocol
from launcher.contract.process_stat import RECORD, start_of, write_record
from launcher.targets import process_table
from launcher.targets.hosts.program.messages import KeeperSpec
from launcher.targets.hosts.program.node_state import mark_followed
from launcher.targets.subprocesses.short_command import read_output

KEEPER = "LAUNCHER_KEEPER"
"""Only a node's keeper has this variable."""
GRACE_FILE = "stop-grace"
"""In the node's folder: the seconds of grace that a request to stop gives."""


def start_keeper(spec: KeeperSpec, program: str, held: Sequence[int]) -> None:
    """Starts a node's keeper with ``program``, which outlives this session, and records it.

    The keeper inherits the open files ``held``, under the same numbers. The spec has secrets, so it
    goes through standard input and not through a file or arguments.
    """
    names = {protocol.RUN_ID: spec.run_id, protocol.NODE_INDEX: str(spec.node_index)}
    folder = Path(spec.node_dir)
    for stale in (RECORD, GRACE_FILE):
        (folder / stale).unlink(missing_ok=True)
    mark_followed(folder.parents[2], spec.node_index)
    with (folder / "keeper.log").open("ab") as log:
        child = subprocess.Popen(
            (sys.executable, "-S", program, "keep", *map(str, held)),
            env={**os.environ, **names, KEEPER: "1"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=held,
        )
    assert child.stdin is not None
    # The keeper writes this too, but later: until then the node would count as lost.
    record_process(folder, child.pid)
    child.stdin.write(spec.to_json().encode())
    child.stdin.close()
    child.returncode = 0  # nobody here waits for it


def record_process(folder: Path, pid: int, **ending: object) -> None:
    """Writes the record of a keeper, with the node's ``ending`` once it has ended."""
    write_record(folder, {"pid": pid, "start": start_of(pid), **ending})


def find(run_id: str, node: int | None = None, *, keepers: bool | None = False) -> tuple[int, ...]:
    """Pids of a run's processes, or of its ``node``: keepers, all others, or for None both."""
    return tuple(
        pid
        for pid, env in process_table.environments()
        if env.get(protocol.RUN_ID) == run_id
        and (node is None or env.get(protocol.NODE_INDEX) == str(node))
        and keepers in (None, KEEPER in env)
    )


def inspect_image(name: str) -> tuple[str, str]:
    """The id of an image and the torch version that its label names; empty if there is none."""
    label = '{{index . "' + protocol.LABEL_TORCH + '"}}'
    form = "{{.Id}}\n{{with .Config.Labels}}" + label + "{{end}}"
    printed = read_output(("docker", "image", "inspect", "--format", form, name)) or ""
    id, _, torch_version = printed.strip().partition("\n")
    return id, torch_version


def remove_containers(*names: str) -> None:
    """Removes containers by their names or ids. Idempotent."""
    read_output(("docker", "rm", "--force", "--volumes", *names))
