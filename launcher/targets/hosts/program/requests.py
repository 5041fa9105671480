"""What a launcher may ask of this host about runs and nodes, such as to end nodes or remove runs: a
function for each request."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from launcher.agent.atomic_write import write_atomically
from launcher.contract import protocol
from launcher.contract.waits import SOON_S, wait_until
from launcher.targets.hosts.program import processes
from launcher.targets.hosts.program.messages import (
    CHECKPOINTS_DIR,
    OUTPUTS_DIR,
    RUNS_DIR,
    LeftOnHost,
    RequestError,
    RunOnHost,
)
from launcher.targets.hosts.program.node_state import is_followed, read_state
from launcher.targets.hosts.program.watch import split_outputs
from launcher.targets.machine import read_size
from launcher.targets.process_table import send
from launcher.targets.subprocesses.short_command import ask, read_output

ANSWER_LIMIT_S = 30.0
"""How long a launcher here may take to act on a request."""
KEEPER_LIMIT_S = 5.0
"""How long keepers may take to end beyond the grace; then all is killed."""
KILL_LIMIT_S = 5.0
"""How long SIGKILL is repeated."""
ENGINE_LIMIT_S = 10.0
"""How long an engine may take to list its containers while a run is ended."""


def remove_run(
    *, run_dir: str, checkpoint_dir: str, outputs_dir: str, brought_bytes: int = 0
) -> int:
    """Removes a run's folder, and its checkpoint folder if that is empty.

    Files that the training wrote beside its code are moved to ``outputs_dir``, if one is named;
    returns how many. Those that ``send_run`` sent within ``brought_bytes`` are not moved.
    """
    code = Path(run_dir, protocol.CODE_DIR)
    kept = split_outputs(code, brought_bytes)[1] if outputs_dir else []
    for path in kept:
        target = Path(outputs_dir) / path.relative_to(code)
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another host of the same home has moved it
            path.replace(target)
    shutil.rmtree(run_dir, ignore_errors=True)
    if checkpoint_dir:
        with suppress(OSError):
            Path(checkpoint_dir).rmdir()
    return len(kept)


def find_image(*, image: str, pull_s: float) -> str:
    """The id of an image, empty if the engine has none.

    Pulls a missing image first, within ``pull_s`` seconds; not if that is 0.
    """
    id, _ = processes.inspect_image(image)
    if pull_s and not id:
        end = ask(("docker", "pull", "--quiet", image), pull_s)
        if end is None or end.code:
            why = end.err.strip().splitlines()[-1:] if end else ["it takes too long"]
            raise RequestError(f"image {image} could not be pulled: {''.join(why)}")
        id, _ = processes.inspect_image(image)
    return id


def ask_launcher(*, run_dir: str, name: str, text: str) -> bool:
    """Leaves the request ``name`` for the launcher that follows a run; returns if it was taken."""
    path = Path(run_dir, name)

    def waits() -> bool:
        return path.exists() and is_followed(path.parent)

    with suppress(OSError):
        if is_followed(path.parent):
            write_atomically(path, text)
            wait_until(lambda: not waits(), ANSWER_LIMIT_S)
            return not path.exists()
    return False


def take_look(*, run_dir: str, node: int, id: str, request: str, wait_s: float) -> dict[str, str]:
    """Has a node look at its workers; returns the look's files by name, or nothing."""
    newest = _newest(Path(run_dir, protocol.NODES_DIR, str(node)))
    if newest is None:
        return {}
    write_atomically(newest / protocol.LOOK_REQUEST, request)
    look = newest / protocol.LOOKS_DIR / id
    wait_until((look / protocol.LOOK_FILE).exists, wait_s, SOON_S)
    return {path.name: path.read_text() for path in look.glob("*.json")}


def read_newest(*, folder: str, name: str) -> str:
    """The text of a file in the folder of a node's newest incarnation; empty if it has none.

    ``folder`` has a folder for each incarnation.
    """
    with suppress(OSError):
        if newest := _newest(Path(folder)):
            return (newest / name).read_text()
    return ""


def _newest(folder: Path) -> Path | None:
    """The folder of a node's newest incarnation."""
    return max(folder.glob("[0-9]*"), key=lambda path: int(path.name), default=None)


def list_runs(*, state_dir: str, run_id: str) -> list[RunOnHost]:
    """The runs whose id begins with ``run_id``."""
    folder = Path(os.path.expanduser(state_dir)) / RUNS_DIR
    paths = sorted(folder.glob(f"*/{protocol.PLAN_FILE}"))
    return [_read_run(path) for path in paths if path.parent.name.startswith(run_id)]


def find_left(*, state_dir: str, remove: str = "") -> list[LeftOnHost]:
    """Finds what runs that do not live have left, and removes what the run ``remove`` has."""
    state, leftovers = Path(os.path.expanduser(state_dir)), []
    kinds = [state / name for name in (RUNS_DIR, CHECKPOINTS_DIR, OUTPUTS_DIR)]
    for run_id in sorted({path.name for kind in kinds for path in kind.glob("*")}):
        run, *_ = paths = [kind / run_id for kind in kinds]
        if is_followed(run) or processes.find(run_id, None, keepers=None):
            continue
        if run_id == remove:
            for path in paths:
                shutil.rmtree(path, ignore_errors=True)
            continue
        left = LeftOnHost(
            run_id=run_id,
            age_s=time.time() - max(path.stat().st_mtime for path in paths if path.exists()),
            size_bytes=sum(map(read_size, paths)),
            is_cut=run.exists(),
        )
        leftovers.append(left)
    return leftovers


def _read_run(plan: Path) -> RunOnHost:
    nodes = list((plan.parent / protocol.NODES_DIR).glob("[0-9]*/[0-9]*"))
    states = [read_state(node).state for node in nodes]
    return RunOnHost(
        run_id=plan.parent.name,
        plan=plan.read_text(),
        nodes=sorted({int(node.parent.name) for node in nodes}),
        lives="running" in states or is_followed(plan.parent),
        # The oldest change in the folder of any node.
        began_at=min(
            (path.stat().st_mtime for node in nodes for path in node.iterdir()), default=time.time()
        ),
    )


def end_nodes(run_id: str, node: int | None, grace_s: float, *, in_containers: bool) -> None:
    """Ends all nodes of a run here, or one: asks their keepers, and kills what is left after the
    grace.

    Processes whose keeper is gone are killed at once.
    """
    keepers = processes.find(run_id, node, keepers=True)
    for pid in keepers:
        with suppress(OSError):
            folder = Path(os.readlink(f"/proc/{pid}/fd/1")).parent
            (folder / processes.GRACE_FILE).write_text(str(grace_s))
    send(keepers, signal.SIGTERM)
    limit_s = grace_s + KEEPER_LIMIT_S
    killed_by = time.monotonic() + limit_s + KILL_LIMIT_S
    wait_until(lambda: not processes.find(run_id, node, keepers=True), limit_s, SOON_S)
    left = processes.find(run_id, node, keepers=None)
    # Then no keeper is left to remove its container.
    is_alone = bool(left) or not keepers
    while left:
        send(left, signal.SIGKILL)
        if time.monotonic() > killed_by:
            raise RequestError(f"processes {left} of {run_id} cannot be ended")
        time.sleep(SOON_S)
        left = processes.find(run_id, node, keepers=None)
    if in_containers and is_alone:
        _remove_containers(run_id, node)


def _remove_containers(run_id: str, node: int | None) -> None:
    """Removes containers whose keeper is gone."""
    label = f"label={protocol.LABEL_RUN_ID}={run_id}"
    fields = '{{.ID}} {{.Label "' + protocol.LABEL_NODE_INDEX + '"}}'
    argv = ("docker", "ps", "--all", "--no-trunc", "--filter", label, "--format", fields)
    if (listed := read_output(argv, ENGINE_LIMIT_S)) is None:
        raise RequestError(f"the Docker engine does not answer: {run_id} may still run there")
    containers = (line.partition(" ") for line in listed.splitlines())
    if ids := [id for id, _, index in containers if node in (None, int(index))]:
        processes.remove_containers(*ids)
